#include "engine/model/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/model/gguf_parser.h"
#include "engine/model/quote.h"

namespace ringfill {
namespace {

absl::Status SystemError(const std::string& path, const char* action, int error) {
  const std::string message = absl::StrCat(path, ": cannot ", action, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::InvalidArgumentError(message);
}

// A read-only mapping of a whole file. A file that is cut short while mapped ends the process with
// SIGBUS when its lost part is read, as with every mapped file.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
  }

  absl::Status Map(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return SystemError(path, "open", errno);
    const absl::Status status = MapDescriptor(path, fd);
    close(fd);
    return status;
  }

  std::span<const std::byte> bytes() const { return {static_cast<std::byte*>(data_), size_}; }

 private:
  absl::Status MapDescriptor(const std::string& path, int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0) return SystemError(path, "stat", errno);
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(path + ": not a regular file");
    }
    if (info.st_size == 0) return absl::InvalidArgumentError(path + ": the file is empty");
    const auto size = static_cast<size_t>(info.st_size);
    void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) return SystemError(path, "map", errno);
    data_ = data;
    size_ = size;
    return absl::OkStatus();
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

// Calls `visit` with each string of a parsed array of strings.
template <typename Visitor>
void ForEachString(const GgufArray& array, const Visitor& visit) {
  const std::byte* at = array.bytes.data();
  for (uint64_t i = 0; i < array.count; ++i) {
    uint64_t length;
    std::memcpy(&length, at, sizeof(length));
    at += sizeof(length);
    visit(std::string_view(reinterpret_cast<const char*>(at), length));
    at += length;
  }
}

}  // namespace

struct GgufFile::Impl {
  std::string path;
  Mapping mapping;
  std::span<const std::byte> bytes;
  GgufContents contents;

  absl::Status Error(const std::string& message) const {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
  }
  absl::Status WrongType(std::string_view key, const char* wanted) const {
    return Error(absl::StrCat("metadata value ", Printable(key), " is not ", wanted));
  }
  absl::Status Missing(std::string_view key) const {
    return Error(absl::StrCat("metadata value ", Printable(key), " is missing"));
  }
  absl::Status ParseContents() {
    absl::StatusOr<GgufContents> parsed = ParseGguf(bytes);
    if (!parsed.ok()) {
      return absl::Status(parsed.status().code(),
                          absl::StrCat(path, ": ", parsed.status().message()));
    }
    contents = *std::move(parsed);
    return absl::OkStatus();
  }
};

GgufFile::GgufFile() : impl_(std::make_unique<Impl>()) {}
GgufFile::~GgufFile() = default;

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->impl_->path = path;
  RF_RETURN_IF_ERROR(file->impl_->mapping.Map(path));
  file->impl_->bytes = file->impl_->mapping.bytes();
  RF_RETURN_IF_ERROR(file->impl_->ParseContents());
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes,
                                                          std::string name) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->impl_->path = std::move(name);
  file->impl_->bytes = bytes;
  RF_RETURN_IF_ERROR(file->impl_->ParseContents());
  return file;
}

const std::string& GgufFile::path() const { return impl_->path; }
uint32_t GgufFile::version() const { return impl_->contents.version; }
std::span<const std::byte> GgufFile::bytes() const { return impl_->bytes; }
const std::vector<GgufTensor>& GgufFile::tensors() const { return impl_->contents.tensors; }

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = impl_->contents.tensor_index.find(name);
  return found == impl_->contents.tensor_index.end() ? nullptr
                                                     : &impl_->contents.tensors[found->second];
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto found = impl_->contents.values.find(key);
  return found == impl_->contents.values.end() ? nullptr : &found->second;
}

absl::StatusOr<uint64_t> GgufFile::GetUint(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return impl_->Missing(key);
  if (const auto* u = std::get_if<uint64_t>(value)) return *u;
  if (const auto* i = std::get_if<int64_t>(value); i != nullptr && *i >= 0) {
    return static_cast<uint64_t>(*i);
  }
  return impl_->WrongType(key, "an unsigned integer");
}

absl::StatusOr<uint64_t> GgufFile::GetUint(std::string_view key, uint64_t default_value) const {
  if (FindValue(key) == nullptr) return default_value;
  return GetUint(key);
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key, double default_value) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return default_value;
  if (const auto* d = std::get_if<double>(value)) return *d;
  return impl_->WrongType(key, "a floating-point number");
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key, bool default_value) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return default_value;
  if (const auto* b = std::get_if<bool>(value)) return *b;
  return impl_->WrongType(key, "a boolean");
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return impl_->Missing(key);
  if (const auto* s = std::get_if<std::string_view>(value)) return *s;
  return impl_->WrongType(key, "a string");
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key,
                                                     std::string_view default_value) const {
  if (FindValue(key) == nullptr) return default_value;
  return GetString(key);
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return impl_->Missing(key);
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr || array->element_type != GgufType::kString) {
    return impl_->WrongType(key, "an array of strings");
  }
  std::vector<std::string_view> strings;
  strings.reserve(array->count);
  ForEachString(*array, [&](std::string_view s) { strings.push_back(s); });
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return impl_->Missing(key);
  const auto* array = std::get_if<GgufArray>(value);
  const size_t size = array == nullptr ? 0 : GgufScalarBytes(array->element_type);
  if (size == 0) return impl_->WrongType(key, "an array of integers");
  std::vector<int64_t> ints;
  ints.reserve(array->count);
  for (uint64_t i = 0; i < array->count; ++i) {
    const GgufValue element = ReadGgufScalar(array->element_type, array->bytes.data() + i * size);
    if (const auto* s = std::get_if<int64_t>(&element)) {
      ints.push_back(*s);
    } else if (const auto* u = std::get_if<uint64_t>(&element);
               u != nullptr && *u <= std::numeric_limits<int64_t>::max()) {
      ints.push_back(static_cast<int64_t>(*u));
    } else {
      return impl_->WrongType(key, "an array of integers of 63 bits");
    }
  }
  return ints;
}

absl::Status GgufFile::Error(std::string_view message) const {
  return impl_->Error(std::string(message));
}

}  // namespace ringfill
