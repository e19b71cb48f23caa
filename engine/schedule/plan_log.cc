#include "engine/schedule/plan_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/schedule/plan_codec.h"

namespace ringfill {
namespace {

struct FileHeader {
  uint32_t magic = 0x534c4652;  // "RFLS"
  uint32_t version = 1;
};
struct RecordHeader {
  uint32_t bytes = 0;
  uint32_t checksum = 0;
};

// FNV-1a: finds torn writes, not attacks.
uint32_t Checksum(std::string_view bytes) {
  uint32_t hash = 2166136261u;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return hash;
}

absl::Status SystemError(const char* what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

// How many of `bytes` were there.
absl::StatusOr<size_t> ReadAt(int fd, const std::string& path, int64_t offset, void* to,
                              size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = pread(fd, static_cast<char*>(to) + done, bytes - done,
                            static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError("cannot read", path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

absl::Status WriteAll(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError("cannot write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

template <typename T>
std::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlanLogReader>> PlanLogReader::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open", path);
  std::unique_ptr<PlanLogReader> reader(new PlanLogReader(fd, path));
  FileHeader header;
  RF_ASSIGN_OR_RETURN(const size_t got, ReadAt(fd, path, 0, &header, sizeof(header)));
  if (got < sizeof(header) || header.magic != FileHeader().magic) {
    return absl::DataLossError(absl::StrCat(path, " is no log of plans"));
  }
  if (header.version != FileHeader().version) {
    return absl::InvalidArgumentError(absl::StrCat("version of ", path, " is ", header.version,
                                                   ", this program reads ", FileHeader().version));
  }
  reader->offset_ = sizeof(header);
  return reader;
}

PlanLogReader::~PlanLogReader() { close(fd_); }

absl::StatusOr<bool> PlanLogReader::ReadRecord(std::string& bytes) {
  struct stat info;
  if (fstat(fd_, &info) != 0) return SystemError("cannot read", path_);
  const int64_t left = info.st_size - offset_;
  RecordHeader header;
  torn_ = left > 0;
  if (left < static_cast<int64_t>(sizeof(header))) return false;
  RF_ASSIGN_OR_RETURN(size_t got, ReadAt(fd_, path_, offset_, &header, sizeof(header)));
  if (got < sizeof(header) || header.bytes > kMaxPlanBytes ||
      header.bytes > left - static_cast<int64_t>(sizeof(header))) {
    return false;
  }
  bytes.resize(header.bytes);
  RF_ASSIGN_OR_RETURN(got, ReadAt(fd_, path_, offset_ + static_cast<int64_t>(sizeof(header)),
                                  bytes.data(), bytes.size()));
  if (got < bytes.size() || Checksum(bytes) != header.checksum) return false;
  torn_ = false;
  offset_ += static_cast<int64_t>(sizeof(header) + bytes.size());
  return true;
}

absl::StatusOr<std::optional<StepPlan>> PlanLogReader::Next() {
  std::string bytes;
  RF_ASSIGN_OR_RETURN(const bool there, ReadRecord(bytes));
  if (!there) return std::optional<StepPlan>();
  RF_ASSIGN_OR_RETURN(StepPlan plan, DecodePlan(bytes));
  return std::optional<StepPlan>(std::move(plan));
}

absl::StatusOr<std::unique_ptr<PlanLogWriter>> PlanLogWriter::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError("cannot open", path);
  std::unique_ptr<PlanLogWriter> writer(new PlanLogWriter(fd, path));
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError("cannot read", path);
  int64_t end = 0;
  // A file shorter than its header was torn when it was made.
  if (info.st_size >= static_cast<int64_t>(sizeof(FileHeader))) {
    RF_ASSIGN_OR_RETURN(const auto reader, PlanLogReader::Open(path));
    std::string bytes;
    for (;;) {
      RF_ASSIGN_OR_RETURN(const bool there, reader->ReadRecord(bytes));
      if (!there) break;
    }
    end = reader->offset();
  }
  if (ftruncate(fd, end) != 0 || lseek(fd, end, SEEK_SET) != end) {
    return SystemError("cannot cut", path);
  }
  if (end == 0) RF_RETURN_IF_ERROR(WriteAll(fd, path, BytesOf(FileHeader())));
  return writer;
}

PlanLogWriter::~PlanLogWriter() { close(fd_); }

absl::Status PlanLogWriter::Append(const StepPlan& plan) {
  RF_RETURN_IF_ERROR(status_);
  const std::string bytes = EncodePlan(plan);
  if (bytes.size() > kMaxPlanBytes) {
    return absl::InvalidArgumentError(absl::StrCat("plan has ", bytes.size(), " bytes"));
  }
  const RecordHeader header = {static_cast<uint32_t>(bytes.size()), Checksum(bytes)};
  status_ = WriteAll(
      fd_, path_, absl::StrCat(absl::string_view(BytesOf(header).data(), sizeof(header)), bytes));
  return status_;
}

}  // namespace ringfill
