#include "engine/model/gguf_parser.h"

#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compute/products/weight_type.h"
#include "engine/model/quote.h"

namespace ringfill {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are read as they lie");

constexpr uint32_t kMinVersion = 2, kMaxVersion = 3;
constexpr uint64_t kMaxNameBytes = 65535;  // the format's bound for keys
constexpr uint64_t kDefaultAlignment = 32;
constexpr int kMaxDims = 4;
// The least that one entry can take: a string's length, and the fields after it.
constexpr uint64_t kMinValueBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

absl::Status Invalid(std::string message) { return absl::InvalidArgumentError(message); }

template <typename T>
T Load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

// A position in the bytes that never passes their end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  absl::StatusOr<const std::byte*> Take(uint64_t n, const std::string& what) {
    if (n > remaining()) {
      return Invalid(absl::StrCat(what, " at offset ", position_, " takes ", n, " bytes, ",
                                  remaining(), " are left in the file"));
    }
    const std::byte* data = bytes_.data() + position_;
    position_ += n;
    return data;
  }

  template <typename T>
  absl::StatusOr<T> Read(const std::string& what) {
    RF_ASSIGN_OR_RETURN(const std::byte* data, Take(sizeof(T), what));
    return Load<T>(data);
  }

  absl::StatusOr<std::string_view> ReadString(const std::string& what, uint64_t max_bytes) {
    RF_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(absl::StrCat("length of ", what)));
    if (length > max_bytes) {
      return Invalid(absl::StrCat(what, " is ", length, " bytes long, at most ", max_bytes));
    }
    RF_ASSIGN_OR_RETURN(const std::byte* data, Take(length, what));
    return std::string_view(reinterpret_cast<const char*>(data), length);
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
};

absl::StatusOr<GgufValue> ReadArray(Cursor& cursor, const std::string& what) {
  RF_ASSIGN_OR_RETURN(const uint32_t type_id, cursor.Read<uint32_t>(what + " element type"));
  RF_ASSIGN_OR_RETURN(const uint64_t count, cursor.Read<uint64_t>(what + " element count"));
  const auto type = static_cast<GgufType>(type_id);
  if (type == GgufType::kArray) return Invalid(what + " is an array of arrays: not supported");
  const size_t size = GgufScalarBytes(type);
  if (size == 0 && type != GgufType::kString) {
    return Invalid(absl::StrCat(what, " has the unknown element type ", type_id));
  }
  const uint64_t least = size == 0 ? sizeof(uint64_t) : size;
  if (count > cursor.remaining() / least) {
    return Invalid(absl::StrCat(what, " claims ", count, " elements, ", cursor.remaining(),
                                " bytes are left in the file"));
  }
  GgufArray array{type, count, {}};
  if (size != 0) {
    RF_ASSIGN_OR_RETURN(const std::byte* data, cursor.Take(count * size, what));
    array.bytes = {data, count * size};
    return GgufValue(array);
  }
  RF_ASSIGN_OR_RETURN(const std::byte* first, cursor.Take(0, what));
  const uint64_t begin = cursor.position();
  for (uint64_t i = 0; i < count; ++i) {
    RF_RETURN_IF_ERROR(
        cursor.ReadString(absl::StrCat(what, " string ", i), cursor.remaining()).status());
  }
  array.bytes = {first, cursor.position() - begin};
  return GgufValue(array);
}

absl::StatusOr<GgufValue> ReadValue(Cursor& cursor, const std::string& what) {
  RF_ASSIGN_OR_RETURN(const uint32_t type_id, cursor.Read<uint32_t>(what + " type"));
  const auto type = static_cast<GgufType>(type_id);
  if (type == GgufType::kArray) return ReadArray(cursor, what);
  if (type == GgufType::kString) {
    RF_ASSIGN_OR_RETURN(const std::string_view text, cursor.ReadString(what, cursor.remaining()));
    return GgufValue(text);
  }
  const size_t size = GgufScalarBytes(type);
  if (size == 0) return Invalid(absl::StrCat(what, " has the unknown type ", type_id));
  RF_ASSIGN_OR_RETURN(const std::byte* data, cursor.Take(size, what));
  return ReadGgufScalar(type, data);
}

absl::Status ReadValues(Cursor& cursor, uint64_t count, GgufContents& out) {
  for (uint64_t i = 0; i < count; ++i) {
    RF_ASSIGN_OR_RETURN(
        const std::string_view key,
        cursor.ReadString(absl::StrCat("key of metadata value ", i), kMaxNameBytes));
    const std::string what = absl::StrCat("metadata value ", Printable(key));
    RF_ASSIGN_OR_RETURN(const GgufValue value, ReadValue(cursor, what));
    if (!out.values.emplace(key, value).second) return Invalid(what + " occurs twice");
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> UintValue(const GgufContents& contents, std::string_view key,
                                   uint64_t default_value) {
  const auto found = contents.values.find(key);
  if (found == contents.values.end()) return default_value;
  if (const uint64_t* value = std::get_if<uint64_t>(&found->second)) return *value;
  return Invalid(absl::StrCat("metadata value ", Printable(key), " is not an unsigned integer"));
}

absl::StatusOr<GgufTensor> ReadTensor(Cursor& cursor, uint64_t index) {
  GgufTensor tensor;
  RF_ASSIGN_OR_RETURN(tensor.name,
                      cursor.ReadString(absl::StrCat("name of tensor ", index), kMaxNameBytes));
  const std::string what = absl::StrCat("tensor ", Printable(tensor.name));
  RF_ASSIGN_OR_RETURN(const uint32_t dims, cursor.Read<uint32_t>(what + " dimension count"));
  if (dims < 1 || dims > kMaxDims) {
    return Invalid(absl::StrCat(what, " has ", dims, " dimensions; supported: 1 to ", kMaxDims));
  }
  tensor.dims = static_cast<int>(dims);
  uint64_t elements = 1;
  for (uint32_t d = 0; d < dims; ++d) {
    RF_ASSIGN_OR_RETURN(tensor.shape[d], cursor.Read<uint64_t>(what + " shape"));
    if (tensor.shape[d] == 0) return Invalid(what + " has a dimension of size 0");
    if (__builtin_mul_overflow(elements, tensor.shape[d], &elements) || elements >> 62 != 0) {
      return Invalid(what + " has more elements than fit in 62 bits");
    }
  }
  RF_ASSIGN_OR_RETURN(tensor.type_id, cursor.Read<uint32_t>(what + " type"));
  RF_ASSIGN_OR_RETURN(tensor.offset, cursor.Read<uint64_t>(what + " offset"));
  return tensor;
}

// Turns the tensor's offset into one from the start of the file and checks its extent.
absl::Status PlaceTensor(GgufTensor& tensor, uint64_t data_start, uint64_t alignment,
                         uint64_t file_bytes) {
  const std::string what = absl::StrCat("tensor ", Printable(tensor.name));
  if (tensor.offset % alignment != 0) {
    return Invalid(absl::StrCat(what, " has offset ", tensor.offset,
                                ", not a multiple of the alignment ", alignment));
  }
  if (data_start > file_bytes || tensor.offset >= file_bytes - data_start) {
    return Invalid(absl::StrCat(what, " starts past the end of the file: offset ", tensor.offset,
                                " from ", data_start, ", file size ", file_bytes));
  }
  tensor.offset += data_start;
  const std::optional<WeightType> type = WeightTypeFromGguf(tensor.type_id);
  if (!type) return absl::OkStatus();
  const WeightTypeInfo& info = GetWeightTypeInfo(*type);
  if (tensor.shape[0] % info.block_weights != 0) {
    return Invalid(absl::StrCat(what, " has rows of ", tensor.shape[0],
                                " weights, not a multiple of the block of ", info.block_weights));
  }
  const uint64_t blocks =
      tensor.shape[0] / info.block_weights * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
  if (blocks > (file_bytes - tensor.offset) / info.block_bytes) {
    return Invalid(absl::StrCat(what, " has ", blocks, " blocks of ", info.block_bytes,
                                " bytes at ", tensor.offset, ", past the end of the file at ",
                                file_bytes));
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(Cursor& cursor, uint64_t count, uint64_t file_bytes, GgufContents& out) {
  RF_ASSIGN_OR_RETURN(const uint64_t alignment,
                      UintValue(out, "general.alignment", kDefaultAlignment));
  if (!std::has_single_bit(alignment) || alignment >> 32 != 0) {
    return Invalid(absl::StrCat("general.alignment is ", alignment, ", not a power of two"));
  }
  for (uint64_t i = 0; i < count; ++i) {
    RF_ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensor(cursor, i));
    if (!out.tensor_index.emplace(tensor.name, out.tensors.size()).second) {
      return Invalid(absl::StrCat("tensor ", Printable(tensor.name), " occurs twice"));
    }
    out.tensors.push_back(tensor);
  }
  const uint64_t data_start = (cursor.position() + alignment - 1) & ~(alignment - 1);
  for (GgufTensor& tensor : out.tensors) {
    RF_RETURN_IF_ERROR(PlaceTensor(tensor, data_start, alignment, file_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ReadVersion(Cursor& cursor) {
  RF_ASSIGN_OR_RETURN(const std::byte* magic, cursor.Take(4, "magic"));
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    return Invalid("not a GGUF file: it does not start with the letters GGUF");
  }
  RF_ASSIGN_OR_RETURN(const uint32_t version, cursor.Read<uint32_t>("version"));
  if (version >= kMinVersion && version <= kMaxVersion) return version;
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= kMaxVersion) {
    return Invalid(absl::StrCat("a big-endian GGUF file (version ", swapped,
                                "); supported: little-endian versions 2 and 3"));
  }
  return Invalid(absl::StrCat("GGUF version ", version, "; supported: 2 and 3"));
}

}  // namespace

size_t GgufScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

GgufValue ReadGgufScalar(GgufType type, const std::byte* data) {
  switch (type) {
    case GgufType::kUint8:
      return uint64_t{Load<uint8_t>(data)};
    case GgufType::kInt8:
      return int64_t{Load<int8_t>(data)};
    case GgufType::kUint16:
      return uint64_t{Load<uint16_t>(data)};
    case GgufType::kInt16:
      return int64_t{Load<int16_t>(data)};
    case GgufType::kUint32:
      return uint64_t{Load<uint32_t>(data)};
    case GgufType::kInt32:
      return int64_t{Load<int32_t>(data)};
    case GgufType::kFloat32:
      return double{Load<float>(data)};
    case GgufType::kBool:
      return Load<uint8_t>(data) != 0;
    case GgufType::kUint64:
      return Load<uint64_t>(data);
    case GgufType::kInt64:
      return Load<int64_t>(data);
    case GgufType::kFloat64:
      return Load<double>(data);
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return uint64_t{0};
}

absl::StatusOr<GgufContents> ParseGguf(std::span<const std::byte> bytes) {
  Cursor cursor(bytes);
  GgufContents contents;
  RF_ASSIGN_OR_RETURN(contents.version, ReadVersion(cursor));
  RF_ASSIGN_OR_RETURN(const uint64_t tensors, cursor.Read<uint64_t>("tensor count"));
  RF_ASSIGN_OR_RETURN(const uint64_t values, cursor.Read<uint64_t>("metadata count"));
  if (tensors > cursor.remaining() / kMinTensorBytes) {
    return Invalid(absl::StrCat("tensor count is ", tensors, ", too many for a file of ",
                                bytes.size(), " bytes"));
  }
  if (values > cursor.remaining() / kMinValueBytes) {
    return Invalid(absl::StrCat("metadata count is ", values, ", too many for a file of ",
                                bytes.size(), " bytes"));
  }
  RF_RETURN_IF_ERROR(ReadValues(cursor, values, contents));
  RF_ASSIGN_OR_RETURN(const uint64_t parts, UintValue(contents, "split.count", 1));
  if (parts > 1) {
    return Invalid(absl::StrCat("split.count is ", parts,
                                ": models split over several files are not supported; merge them "
                                "into one file first"));
  }
  RF_RETURN_IF_ERROR(ReadTensors(cursor, tensors, bytes.size(), contents));
  return contents;
}

}  // namespace ringfill
