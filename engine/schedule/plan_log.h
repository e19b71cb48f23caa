// A file of executed plans, for replay: a header, then records of {bytes, checksum, encoded plan}.
// A process that dies while it appends leaves a torn record at the end, which readers ignore and
// the next writer cuts off. For one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

class PlanLogWriter {
 public:
  // Goes on behind what the file has, or makes it. DATA_LOSS when it is no plan log;
  // INVALID_ARGUMENT when it is of another version.
  static absl::StatusOr<std::unique_ptr<PlanLogWriter>> Open(const std::string& path);
  ~PlanLogWriter();
  PlanLogWriter(const PlanLogWriter&) = delete;
  PlanLogWriter& operator=(const PlanLogWriter&) = delete;

  // Handed to the system when it returns; not synchronised to the disk. After an error the file may
  // end in a torn record, and every later call fails.
  absl::Status Append(const StepPlan& plan);

 private:
  explicit PlanLogWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  const int fd_;
  const std::string path_;
  absl::Status status_;
};

class PlanLogReader {
 public:
  // Errors: as PlanLogWriter::Open, and NOT_FOUND.
  static absl::StatusOr<std::unique_ptr<PlanLogReader>> Open(const std::string& path);
  ~PlanLogReader();
  PlanLogReader(const PlanLogReader&) = delete;
  PlanLogReader& operator=(const PlanLogReader&) = delete;

  // The next plan, or nothing at the end. A whole record that does not decode is DATA_LOSS.
  absl::StatusOr<std::optional<StepPlan>> Next();
  // The end that Next found was a torn record.
  bool torn() const { return torn_; }
  // Bytes of the file up to the end of the last whole record read.
  int64_t offset() const { return offset_; }

 private:
  friend class PlanLogWriter;
  explicit PlanLogReader(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  // False at the end.
  absl::StatusOr<bool> ReadRecord(std::string& bytes);

  const int fd_;
  const std::string path_;
  int64_t offset_ = 0;
  bool torn_ = false;
};

}  // namespace ringfill
