// The trace context that a caller sends along as the metadata "traceparent".
//
// Format: W3C Recommendation "Trace Context" (2021), section 3.2.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ringfill {

inline constexpr char kTraceparentKey[] = "traceparent";

struct Traceparent {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16, the caller's span
  bool sampled = false;

  // As version 00, however it came.
  std::string Text() const;
};

// Nothing for a value that is not valid. Of versions that come after 00, what they share with it.
std::optional<Traceparent> ParseTraceparent(std::string_view text);

}  // namespace ringfill
