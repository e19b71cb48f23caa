# The least NCCL. Non-blocking communicators came with 2.14; 2.25 is the first for the least toolkit,
# 12.8, and knows all GPUs that kernels are built for. CheckNccl (engine/comm/nccl) asks the same of
# the library at run time.
set(RINGFILL_LEAST_NCCL 2.25)

# Sets `missing` to what is wanted instead when the header is of an older NCCL, else to nothing.
function(ringfill_check_nccl header missing)
  file(STRINGS ${header} lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  list(JOIN numbers "." version)
  set(${missing} "" PARENT_SCOPE)
  if(NOT version OR version VERSION_LESS RINGFILL_LEAST_NCCL)
    set(${missing} "NCCL from ${RINGFILL_LEAST_NCCL} on (${header} is of ${version})" PARENT_SCOPE)
  endif()
endfunction()
