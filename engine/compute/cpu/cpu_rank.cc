#include "engine/compute/cpu/cpu_rank.h"

namespace ringfill {
namespace {

constexpr char kPages[] = "kv pages";
constexpr char kWeights[] = "expanded weights";
constexpr char kTileScratch[] = "tile scratch";
constexpr char kProductScratch[] = "product scratch";

}  // namespace

CpuThread::CpuThread(const CpuModel& model, const std::shared_ptr<MemoryLedger>& ledger)
    : products(model.strict() ? kStrictProductRows : 0),
      tile(model.config(), model.dtype()),
      attention(ledger, "attention scratch"),
      head_weights(ledger, "output head"),
      head_logits(ledger, "output head") {}

CpuRank::CpuRank(CpuModel& model, int64_t pages, int thread_count, int spin_rounds)
    : model(model),
      ledger(std::make_shared<MemoryLedger>()),
      pool(model.geometry(), pages),
      team(thread_count, spin_rounds) {
  ledger->Add(MemoryPool::kKvPages, kPages,
              static_cast<size_t>(pages) * model.geometry().PageBytes());
  ledger->Add(MemoryPool::kWeights, kWeights, model.weight_bytes_per_rank());
  for (int t = 0; t < thread_count; ++t) {
    threads.push_back(std::make_unique<CpuThread>(model, ledger));
    ledger->Add(MemoryPool::kScratch, kTileScratch, threads.back()->tile.bytes());
  }
}

CpuRank::~CpuRank() = default;

void CpuRank::ReserveAttention(int rows) {
  const size_t bytes = model.attention().ScratchBytes(rows);
  for (auto& thread : threads) thread->attention.Reserve(bytes);
}

void CpuRank::CountProductScratch() {
  size_t bytes = 0;
  for (const auto& thread : threads) bytes += thread->products.scratch_bytes();
  ledger->Set(MemoryPool::kScratch, kProductScratch, bytes);
}

}  // namespace ringfill
