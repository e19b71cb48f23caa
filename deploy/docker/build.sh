#!/usr/bin/env bash
# What the Dockerfile's build stage runs on the sources: leaves in /out the Debian package, and in /out/root what
# the image has besides it. VARIANT, VERSION and GRPC_VERSION are the Dockerfile's.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/../../tools/lib.sh"
cd "$root"

case $VARIANT in
  cpu) package=$(tools/package.sh) ;;
  cuda)
    cmake --preset package -DRINGFILL_CUDA=ON -DRINGFILL_CUDNN=ON -DCUDAToolkit_ROOT=/opt/nvidia/cu13 \
      -DRINGFILL_NCCL_INCLUDE=/opt/nvidia/nccl/include -DRINGFILL_NCCL_LIBRARY=/opt/nvidia/nccl/lib/libnccl.so \
      -DRINGFILL_CUDNN_INCLUDE=/opt/nvidia/cudnn/include \
      -DRINGFILL_CUDNN_LIBRARY=/opt/nvidia/cudnn/lib/libcudnn.so
    build package ringfilld ringfill ringfill_packaging
    package=$(tools/package.sh --tree build/package)
    ;;
  *) die "VARIANT is $VARIANT; it may be cpu or cuda" ;;
esac

# Labels are made of arguments, which nothing else holds to what is built.
built=$(dpkg-deb --field "$package" Version)
[[ $built == "$VERSION" ]] || die "the package's version is $built; build with --build-arg VERSION=$built"
grpc=$(dpkg-query --show --showformat '${source:Upstream-Version}' libgrpc++-dev)
[[ $grpc == "$GRPC_VERSION" ]] || die "gRPC's version is $grpc; build with --build-arg GRPC_VERSION=$grpc"

mkdir -p /out/root
cp "$package" /out/ringfill.deb
[[ $VARIANT == cuda ]] || exit 0

# Of NVIDIA's packages, the libraries that run and their licences, where the programs were linked to them.
mkdir -p /out/root/opt /out/root/etc/ld.so.conf.d
for library in cublas cublasLt cudart nccl 'cudnn*' nvrtc 'nvrtc-builtins'; do
  # A pattern with *: several files.
  # shellcheck disable=SC2086
  (cd /opt && cp --parents --no-dereference nvidia/*/lib/lib$library.so.* /out/root/opt/)
done
for name in cublas cuda_runtime cuda_nvrtc nccl_cu13 cudnn_cu13; do
  cp --recursive /opt/nvidia_"$name"-*.dist-info /out/root/opt/
done
printf '/opt/nvidia/%s/lib\n' cu13 nccl cudnn >/out/root/etc/ld.so.conf.d/nvidia.conf
