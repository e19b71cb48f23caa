// A file of executed steps, for replay: what they were computed with, then records of {bytes,
// checksums, record}. Files and the threads' rule: an object is used by one thread.
//
//   "RFLS" version | bytes, checksum, header | bytes, checksum, check of the two, record | ...
//
// A process that dies while it appends leaves a torn record at the end, which readers tell from
// damage: what is there of it is whole up to the file's end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/replay/plan_record.h"

namespace ringfill {

class PlanLogWriter {
 public:
  // Makes the file, readable by its owner alone (it holds prompts). A log that is there already
  // becomes PATH.1, in place of an older one, unless it holds no step. DATA_LOSS, and nothing
  // changed, when either is a file of another kind. `max_bytes`: of the file.
  static absl::StatusOr<std::unique_ptr<PlanLogWriter>> Create(const std::string& path,
                                                               int64_t max_bytes,
                                                               const PlanLogHeader& header);
  ~PlanLogWriter();
  PlanLogWriter(const PlanLogWriter&) = delete;
  PlanLogWriter& operator=(const PlanLogWriter&) = delete;

  // `record`: encoded. Handed to the system when it returns; not synchronised to the disk. Where it
  // has no room any more, an end record is written instead and ended() turns true. After an error
  // the log has ended as well: what could not be written whole is cut off, and an end record that
  // says so written, where that is possible.
  absl::Status Append(std::string_view record);
  // Writes the end record, unless the log has ended.
  absl::Status End(PlanLogEnd why);
  bool ended() const { return ended_; }

 private:
  PlanLogWriter(int fd, std::string path, int64_t max_bytes)
      : fd_(fd), path_(std::move(path)), max_bytes_(max_bytes) {}
  absl::Status Write(std::string_view record);
  // In place of what could not be written whole; where that is too little room, of the last record.
  void WriteFailedEnd();

  const int fd_;
  const std::string path_;
  const int64_t max_bytes_;
  int64_t size_ = 0;
  int64_t last_ = 0;  // where the last record begins
  bool ended_ = false;
};

class PlanLogReader {
 public:
  // NOT_FOUND, or DATA_LOSS when it is no plan log or its header is damaged; INVALID_ARGUMENT when
  // it is of another version.
  static absl::StatusOr<std::unique_ptr<PlanLogReader>> Open(const std::string& path);
  ~PlanLogReader();
  PlanLogReader(const PlanLogReader&) = delete;
  PlanLogReader& operator=(const PlanLogReader&) = delete;

  const PlanLogHeader& header() const { return header_; }
  // The next record, or nothing at the end. DATA_LOSS naming the place when the file is damaged.
  absl::StatusOr<std::optional<LogRecord>> Next();
  // The end that Next found was a torn record.
  bool torn() const { return torn_; }
  // Of the file, up to the end of the last record read.
  int64_t offset() const { return offset_; }

 private:
  PlanLogReader(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  absl::Status ReadHeader();
  // The record's bytes; false at the end.
  absl::StatusOr<bool> ReadRecord(std::string& bytes);
  absl::Status Damaged(std::string_view what) const;

  const int fd_;
  const std::string path_;
  PlanLogHeader header_;
  int64_t offset_ = 0;
  bool torn_ = false;
};

}  // namespace ringfill
