// What this process finds on its machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ringfill {

// Cores that this process may use; at least 1.
int UsableCores();
// Bytes of memory that this process may take: the machine's, or less where its control group (a
// container, a unit with MemoryMax=) is limited.
int64_t UsableMemory();
// The least limit, in bytes, of the memory of this process's control group and those above it, in
// either version; nothing when there is none. `root`: where proc/ and sys/ are.
std::optional<int64_t> GroupMemoryLimit(const std::filesystem::path& root = "/");
// "unknown" when the system does not say.
std::string HostName();
// The running kernel's own, another one after each boot; containers of a machine share it. Empty
// when the system does not say.
std::string BootId();

}  // namespace ringfill
