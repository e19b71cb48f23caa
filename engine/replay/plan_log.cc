#include "engine/replay/plan_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/output_file.h"

namespace ringfill {
namespace {

struct FileHeader {
  uint32_t magic = 0x534c4652;  // "RFLS"
  uint32_t version = 2;
  uint32_t bytes = 0;  // of the header that follows
  uint32_t checksum = 0;
};
struct RecordHeader {
  uint32_t bytes = 0;
  uint32_t checksum = 0;
  uint32_t check = 0;  // of the two
};

absl::string_view Piece(std::string_view text) { return {text.data(), text.size()}; }

template <typename T>
std::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

// FNV-1a: finds torn writes and damage, not attacks.
uint32_t Checksum(std::string_view bytes, uint32_t hash = 2166136261u) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return hash;
}

uint32_t HeaderCheck(const RecordHeader& header) {
  return Checksum(BytesOf(header).substr(0, offsetof(RecordHeader, check)));
}

// As it stands in the file.
std::string Framed(std::string_view record) {
  RecordHeader header = {static_cast<uint32_t>(record.size()), Checksum(record), 0};
  header.check = HeaderCheck(header);
  return absl::StrCat(Piece(BytesOf(header)), Piece(record));
}

// The whole file header's checksum covers the version and the length too.
uint32_t FileChecksum(const FileHeader& header, std::string_view bytes) {
  return Checksum(bytes, Checksum(BytesOf(header).substr(0, offsetof(FileHeader, checksum))));
}

absl::Status SystemError(std::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat(Piece(what), " ", path, ": ", std::strerror(error));
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

// There is nothing at `path`, or a log (one that was torn in its first bytes is one).
absl::Status CheckReplaceable(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT ? absl::OkStatus() : SystemError("cannot open", path);
  uint32_t magic = 0;
  struct stat info;
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const absl::StatusOr<size_t> got = regular ? ReadAt(fd, path, 0, &magic, sizeof(magic)) : 0;
  close(fd);
  RF_RETURN_IF_ERROR(got.status());
  const uint32_t expected = FileHeader().magic;
  if (!regular || std::memcmp(&magic, &expected, *got) != 0) {
    return absl::DataLossError(absl::StrCat(path, " is there and is no plan log"));
  }
  return absl::OkStatus();
}

// A log whose daemon ended before its first step, such as one that could not start.
bool HoldsNoStep(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat info;
  FileHeader file;
  const bool read =
      fstat(fd, &info) == 0 && ReadAt(fd, path, 0, &file, sizeof(file)).value_or(0) == sizeof(file);
  close(fd);
  if (!read) return true;
  const size_t end = Framed(EncodeLogRecord(EndRecord{})).size();
  return static_cast<uint64_t>(info.st_size) <= sizeof(file) + file.bytes + end;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlanLogWriter>> PlanLogWriter::Create(const std::string& path,
                                                                     int64_t max_bytes,
                                                                     const PlanLogHeader& header) {
  const std::string before = path + ".1";
  RF_RETURN_IF_ERROR(CheckReplaceable(path));
  RF_RETURN_IF_ERROR(CheckReplaceable(before));
  // Starts that fail, again and again, must not push out what was recorded before.
  const bool empty = HoldsNoStep(path);
  if ((empty ? std::remove(path.c_str()) : std::rename(path.c_str(), before.c_str())) != 0 &&
      errno != ENOENT) {
    return SystemError(empty ? "cannot remove" : "cannot rename", path);
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return SystemError("cannot make", path);
  std::unique_ptr<PlanLogWriter> writer(new PlanLogWriter(fd, path, max_bytes));
  const std::string bytes = EncodeLogHeader(header);
  FileHeader file;
  file.bytes = static_cast<uint32_t>(bytes.size());
  file.checksum = FileChecksum(file, bytes);
  const std::string whole = absl::StrCat(Piece(BytesOf(file)), bytes);
  if (!WriteAll(fd, whole)) return SystemError("cannot write", path);
  writer->size_ = writer->last_ = static_cast<int64_t>(whole.size());
  return writer;
}

PlanLogWriter::~PlanLogWriter() { close(fd_); }

absl::Status PlanLogWriter::Write(std::string_view record) {
  const std::string whole = Framed(record);
  if (WriteAll(fd_, whole)) {
    last_ = size_;
    size_ += static_cast<int64_t>(whole.size());
    return absl::OkStatus();
  }
  absl::Status failed = SystemError("cannot write", path_);
  ended_ = true;
  WriteFailedEnd();
  return failed;
}

void PlanLogWriter::WriteFailedEnd() {
  const std::string end = Framed(EncodeLogRecord(EndRecord{PlanLogEnd::kFailed}));
  // In place of the last record it needs no room. Where nothing can be cut off, readers take what
  // stays for a torn record.
  for (const int64_t at : {size_, last_}) {
    const bool whole = ftruncate(fd_, static_cast<off_t>(size_)) == 0;
    if (!whole || lseek(fd_, static_cast<off_t>(at), SEEK_SET) < 0 || !WriteAll(fd_, end)) continue;
    size_ = at + static_cast<int64_t>(end.size());
    break;
  }
  std::ignore = ftruncate(fd_, static_cast<off_t>(size_));
}

absl::Status PlanLogWriter::Append(std::string_view record) {
  if (ended_) return absl::FailedPreconditionError(absl::StrCat(path_, " has ended"));
  const size_t end = sizeof(RecordHeader) + EncodeLogRecord(EndRecord()).size();
  const auto after = size_ + static_cast<int64_t>(sizeof(RecordHeader) + record.size() + end);
  if (after > max_bytes_ || record.size() > kMaxLogRecordBytes) return End(PlanLogEnd::kFull);
  return Write(record);
}

absl::Status PlanLogWriter::End(PlanLogEnd why) {
  if (ended_) return absl::OkStatus();
  RF_RETURN_IF_ERROR(Write(EncodeLogRecord(EndRecord{why})));
  ended_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PlanLogReader>> PlanLogReader::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open", path);
  std::unique_ptr<PlanLogReader> reader(new PlanLogReader(fd, path));
  RF_RETURN_IF_ERROR(reader->ReadHeader());
  return reader;
}

PlanLogReader::~PlanLogReader() { close(fd_); }

absl::Status PlanLogReader::Damaged(std::string_view what) const {
  return absl::DataLossError(
      absl::StrCat(path_, " is damaged at byte ", offset_, ": ", Piece(what)));
}

absl::Status PlanLogReader::ReadHeader() {
  FileHeader file;
  RF_ASSIGN_OR_RETURN(size_t got, ReadAt(fd_, path_, 0, &file, sizeof(file)));
  const uint32_t magic = FileHeader().magic;
  if (std::memcmp(&file.magic, &magic, std::min(got, sizeof(magic))) != 0) {
    return absl::DataLossError(absl::StrCat(path_, " is no plan log"));
  }
  if (got < sizeof(file)) return Damaged("it ends in its header");
  if (file.version != FileHeader().version) {
    return absl::InvalidArgumentError(absl::StrCat("version of ", path_, " is ", file.version,
                                                   ", this program reads ", FileHeader().version));
  }
  if (file.bytes > kMaxLogHeaderBytes) return Damaged("its header is too long");
  std::string bytes(file.bytes, '\0');
  RF_ASSIGN_OR_RETURN(got, ReadAt(fd_, path_, sizeof(file), bytes.data(), bytes.size()));
  if (got < bytes.size()) return Damaged("it ends in its header");
  if (FileChecksum(file, bytes) != file.checksum) {
    return Damaged("the header's checksum does not fit");
  }
  absl::StatusOr<PlanLogHeader> header = DecodeLogHeader(bytes);
  if (!header.ok()) {
    return Damaged({header.status().message().data(), header.status().message().size()});
  }
  header_ = *std::move(header);
  offset_ = static_cast<int64_t>(sizeof(file) + bytes.size());
  return absl::OkStatus();
}

absl::StatusOr<bool> PlanLogReader::ReadRecord(std::string& bytes) {
  struct stat info;
  if (fstat(fd_, &info) != 0) return SystemError("cannot read", path_);
  const int64_t left = info.st_size - offset_;
  RecordHeader header;
  RF_ASSIGN_OR_RETURN(size_t got, ReadAt(fd_, path_, offset_, &header, sizeof(header)));
  torn_ = got > 0;
  if (got < sizeof(header)) return false;
  if (HeaderCheck(header) != header.check || header.bytes > kMaxLogRecordBytes) {
    return Damaged("no record begins here");
  }
  if (header.bytes > left - static_cast<int64_t>(sizeof(header))) return false;
  bytes.resize(header.bytes);
  RF_ASSIGN_OR_RETURN(got, ReadAt(fd_, path_, offset_ + static_cast<int64_t>(sizeof(header)),
                                  bytes.data(), bytes.size()));
  if (got < bytes.size()) return false;
  if (Checksum(bytes) != header.checksum) return Damaged("the record's checksum does not fit");
  torn_ = false;
  return true;
}

absl::StatusOr<std::optional<LogRecord>> PlanLogReader::Next() {
  std::string bytes;
  RF_ASSIGN_OR_RETURN(const bool there, ReadRecord(bytes));
  if (!there) return std::optional<LogRecord>();
  absl::StatusOr<LogRecord> record = DecodeLogRecord(bytes);
  if (!record.ok()) {
    return Damaged({record.status().message().data(), record.status().message().size()});
  }
  offset_ += static_cast<int64_t>(sizeof(RecordHeader) + bytes.size());
  return std::optional<LogRecord>(*std::move(record));
}

}  // namespace ringfill
