#include "tests/testing/gguf_writer.h"

#include <utility>

#include "base/check.h"

namespace ringfill {
namespace {

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutString(std::string& out, std::string_view s) {
  Put<uint64_t>(out, s.size());
  out.append(s);
}

uint64_t RoundUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

}  // namespace

void GgufWriter::BeginValue(std::string_view key, uint32_t type_id) {
  ++values_;
  PutString(metadata_, key);
  Put(metadata_, type_id);
}

void GgufWriter::AddUint32(std::string_view key, uint32_t value) {
  BeginValue(key, 4);
  Put(metadata_, value);
}

void GgufWriter::AddUint64(std::string_view key, uint64_t value) {
  BeginValue(key, 10);
  Put(metadata_, value);
}

void GgufWriter::AddInt32(std::string_view key, int32_t value) {
  BeginValue(key, 5);
  Put(metadata_, value);
}

void GgufWriter::AddFloat32(std::string_view key, float value) {
  BeginValue(key, 6);
  Put(metadata_, value);
}

void GgufWriter::AddBool(std::string_view key, bool value) {
  BeginValue(key, 7);
  Put<uint8_t>(metadata_, value ? 1 : 0);
}

void GgufWriter::AddString(std::string_view key, std::string_view value) {
  BeginValue(key, 8);
  PutString(metadata_, value);
}

void GgufWriter::AddStrings(std::string_view key, const std::vector<std::string>& values) {
  BeginValue(key, 9);
  Put<uint32_t>(metadata_, 8);
  Put<uint64_t>(metadata_, values.size());
  for (const std::string& s : values) PutString(metadata_, s);
}

void GgufWriter::AddInts(std::string_view key, const std::vector<int32_t>& values) {
  BeginValue(key, 9);
  Put<uint32_t>(metadata_, 5);
  Put<uint64_t>(metadata_, values.size());
  for (int32_t v : values) Put(metadata_, v);
}

void GgufWriter::AddRaw(std::string_view key, uint32_t type_id, std::string_view encoded) {
  BeginValue(key, type_id);
  metadata_.append(encoded);
}

void GgufWriter::AddTensor(std::string_view name, const std::vector<uint64_t>& shape,
                           uint32_t type_id, std::vector<std::byte> bytes) {
  tensors_.push_back({std::string(name), shape, type_id, std::move(bytes)});
}

// Up to where the tensors' data begins.
std::string GgufWriter::Header() const {
  std::string out = "GGUF";
  Put(out, version_);
  Put<uint64_t>(out, tensors_.size());
  Put<uint64_t>(out, values_ + (alignment_ == 32 ? 0 : 1));
  if (alignment_ != 32) {
    PutString(out, "general.alignment");
    Put<uint32_t>(out, 4);
    Put(out, alignment_);
  }
  out += metadata_;
  uint64_t offset = 0;
  for (const Tensor& t : tensors_) {
    PutString(out, t.name);
    Put<uint32_t>(out, static_cast<uint32_t>(t.shape.size()));
    for (uint64_t dim : t.shape) Put(out, dim);
    Put(out, t.type_id);
    Put(out, offset);
    offset = RoundUp(offset + t.bytes.size(), alignment_);
  }
  out.resize(RoundUp(out.size(), alignment_), '\0');
  return out;
}

absl::Status GgufWriter::WriteTo(const std::function<absl::Status(std::string_view)>& write) const {
  RF_RETURN_IF_ERROR(write(Header()));
  for (const Tensor& t : tensors_) {
    RF_RETURN_IF_ERROR(write({reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()}));
    RF_RETURN_IF_ERROR(
        write(std::string(RoundUp(t.bytes.size(), alignment_) - t.bytes.size(), '\0')));
  }
  return absl::OkStatus();
}

std::vector<std::byte> GgufWriter::Build() const {
  std::vector<std::byte> out;
  const absl::Status written = WriteTo([&out](std::string_view bytes) {
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    out.insert(out.end(), first, first + bytes.size());
    return absl::OkStatus();
  });
  RF_CHECK(written.ok());
  return out;
}

}  // namespace ringfill
