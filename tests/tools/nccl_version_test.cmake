# Which headers of NCCL are new enough. Run by cmake -P; the folder to write in is WORK.
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/RingfillNccl.cmake)

function(expect version wanted)
  string(REPLACE "." ";" parts ${version})
  list(GET parts 0 major)
  list(GET parts 1 minor)
  file(WRITE ${WORK}/nccl.h "#define NCCL_MAJOR ${major}\n#define NCCL_MINOR ${minor}\n"
                            "#define NCCL_PATCH 1\n#define NCCL_SUFFIX \"\"\n")
  ringfill_check_nccl(${WORK}/nccl.h missing)
  if(NOT missing MATCHES "${wanted}")
    message(FATAL_ERROR "NCCL ${version}: \"${missing}\", not \"${wanted}\"")
  endif()
endfunction()

expect(2.25 "^$")
expect(2.28 "^$")
expect(3.0 "^$")
expect(2.24 "^NCCL from 2.25 on .*nccl.h is of 2.24.1")
expect(2.9 "is of 2.9.1")
