#include "engine/decode/replicated_pass.h"

#include <algorithm>
#include <map>

#include "engine/schedule/documents.h"

namespace ringfill {
namespace {

using Stage = Device::TokenStage;
constexpr Stage kStages[] = {Stage::kQkv, Stage::kStates, Stage::kOutput, Stage::kFfn};
// Tokens that run through the layers together.
constexpr size_t kBatchTokens = 256;
// How many layers the host may be ahead of the device.
constexpr int kRunAhead = 2;

size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

ReplicatedPass::ReplicatedPass(Rank& rank, const StepPlan& plan, const StepControl& control,
                               StepTransfers& transfers, RankStepResult& result)
    : rank_(rank), plan_(plan), transfers_(transfers), control_(control), result_(result) {}

bool ReplicatedPass::Needed(const StepPlan& plan) {
  return !plan.decodes.empty() ||
         std::any_of(plan.chunks.begin(), plan.chunks.end(), [](const PrefillChunk& chunk) {
           return chunk.mode == TokenMode::kReplicated;
         });
}

void ReplicatedPass::ListTokens() {
  last_of_chunk_.resize(plan_.chunks.size());
  for (size_t c = 0; c < plan_.chunks.size(); ++c) {
    const PrefillChunk& chunk = plan_.chunks[c];
    if (chunk.mode != TokenMode::kReplicated) continue;
    size_t index = 0;
    for (const Span& span : chunk.spans) {
      for (int64_t p = span.begin; p < span.end; ++p) {
        tokens_.push_back({chunk.tokens[index++], p, chunk.placement, static_cast<int>(c),
                           &chunk.pages, DocumentStart(chunk.document_starts, p)});
      }
    }
    last_of_chunk_[c] = tokens_.size() - 1;
  }
  first_decode_ = tokens_.size();
  for (const DecodeToken& decode : plan_.decodes) {
    tokens_.push_back({decode.token, decode.position, decode.placement, -1, &decode.pages,
                       decode.document_start});
  }
}

std::shared_ptr<const Device::TokenBatch> ReplicatedPass::MakeBatch(size_t first,
                                                                    size_t last) const {
  auto batch = std::make_shared<Device::TokenBatch>();
  const int me = rank_.index();
  const int64_t page_tokens = rank_.geometry().page_tokens;
  batch->rank = me;
  batch->ranks = rank_.ranks();
  batch->faults = faults_.back();
  for (size_t i = first; i < last; ++i) {
    const Token& token = tokens_[i];
    const Placement& placement = *rank_.placements()[Index(token.placement)];
    const std::vector<PageId>& pages = (*token.pages)[Index(me)];
    batch->token.push_back(token.token);
    batch->position.push_back(token.position);
    const bool stopped = Stopped(token.chunk);
    batch->visible.push_back(stopped ? 0 : placement.TokensBefore(me, token.position + 1));
    batch->begin.push_back(stopped ? 0 : placement.TokensBefore(me, token.document_start));
    const bool same_run = i > first && token.chunk >= 0 && tokens_[i - 1].chunk == token.chunk;
    if (!same_run) batch->runs.push_back({pages, 0});
    batch->run.push_back(static_cast<int>(batch->runs.size()) - 1);
    if (!stopped && placement.Home(token.position) == me) {
      const int64_t local = placement.LocalToken(token.position);
      batch->stores.push_back({static_cast<int64_t>(i - first), 1,
                               pages[Index(local / page_tokens)],
                               static_cast<int>(local % page_tokens)});
    }
  }
  return batch;
}

absl::Status ReplicatedPass::Run() {
  ListTokens();
  const int n = rank_.ranks();
  const auto most = static_cast<int64_t>(std::min(kBatchTokens, tokens_.size()));
  size_t bytes = 0;
  for (const Stage stage : kStages) {
    bytes = std::max(bytes, rank_.device().TokenBytes(stage, most, n));
  }
  send_[0] = rank_.Reserve("token send", 0, bytes);
  if (n == 1) {
    send_[1] = rank_.Reserve("token send", 1, bytes);
  } else {
    gathered_ = rank_.Reserve("token gather", 0, bytes * Index(n));
  }
  RF_RETURN_IF_ERROR(rank_.reserved());
  hidden_.resize(tokens_.size() * Index(rank_.model().width));
  for (size_t first = 0; first < tokens_.size(); first += kBatchTokens) {
    RF_RETURN_IF_ERROR(RunBatch(first, std::min(tokens_.size(), first + kBatchTokens)));
  }
  result_.stopped_mask |= stopped_;
  RF_RETURN_IF_ERROR(rank_.stream().Synchronize(rank_.Deadline()));
  transfers_.Collect();
  FindFaults();
  return absl::OkStatus();
}

absl::Status ReplicatedPass::RunBatch(size_t first, size_t last) {
  Device& device = rank_.device();
  const auto tokens = static_cast<int64_t>(last - first);
  faults_.push_back(std::make_shared<std::vector<Device::TokenFault>>(last - first));
  flags_.clear();
  if (AllStopped(first, last)) return absl::OkStatus();
  const bool has_chunks = first < first_decode_;
  device.BeginTokens(MakeBatch(first, last));
  // One rank alone reads what it wrote itself, so the stages take turns with two buffers.
  std::byte* const even = send_[0];
  std::byte* const odd = rank_.ranks() == 1 ? send_[1] : send_[0];
  std::vector<EventPtr> done;
  for (int layer = 0; layer < rank_.model().layers; ++layer) {
    if (layer >= kRunAhead) {
      RF_RETURN_IF_ERROR(done[Index(layer - kRunAhead)]->Await(rank_.Deadline()));
      transfers_.Collect();
      if (has_chunks && TakeStops(layer - kRunAhead)) {
        if (AllStopped(first, last)) break;
        device.StopTokens(MakeBatch(first, last));
      }
    }
    flags_.push_back(std::make_shared<LayerFlags>());
    device.TokenAttend(layer, GatherQkv(layer, tokens, even), odd);
    device.TokenOutput(layer, Gather(Stage::kStates, layer, tokens, odd), even);
    device.TokenFfn(layer, Gather(Stage::kOutput, layer, tokens, even), odd);
    device.EndTokenLayer(layer, Gather(Stage::kFfn, layer, tokens, odd));
    done.push_back(transfers_.Record());
  }
  device.HiddenTokens(hidden_.data() + first * Index(rank_.model().width));
  return absl::OkStatus();
}

RoundHeader ReplicatedPass::Header(int layer, int source, size_t bytes) const {
  RoundHeader header;
  header.epoch = plan_.epoch;
  header.step = plan_.step;
  header.layer = static_cast<uint32_t>(layer);
  header.source = static_cast<uint32_t>(source);
  header.kind = static_cast<uint32_t>(RoundKind::kTokens);
  header.bytes = bytes - sizeof(RoundHeader);
  return header;
}

const std::byte* ReplicatedPass::GatherQkv(int layer, int64_t tokens, std::byte* send) {
  Device& device = rank_.device();
  device.TokenQkv(layer, send);
  const std::shared_ptr<LayerFlags>& flags = flags_.back();
  const size_t bytes = device.TokenBytes(Stage::kQkv, tokens, rank_.ranks());
  RoundHeader mine = Header(layer, rank_.index(), bytes);
  mine.stop_mask = AskWhatToStop();
  flags->stop_mask.fetch_or(mine.stop_mask, std::memory_order_relaxed);
  device.WriteHeader(mine, send);
  const std::byte* gathered = Gather(Stage::kQkv, layer, tokens, send);
  for (int r = 0; r < rank_.ranks(); ++r) {
    if (r == rank_.index()) continue;
    device.CheckHeader(Header(layer, r, bytes), gathered + Index(r) * bytes, flags);
  }
  return gathered;
}

bool ReplicatedPass::TakeStops(int layer) {
  if (rank_.index() == 0 && control_.on_layer) control_.on_layer(layer + 1);
  const uint64_t before = stopped_;
  stopped_ |= flags_[Index(layer)]->stop_mask.load(std::memory_order_relaxed);
  return stopped_ != before;
}

bool ReplicatedPass::AllStopped(size_t first, size_t last) const {
  return std::all_of(tokens_.begin() + static_cast<ptrdiff_t>(first),
                     tokens_.begin() + static_cast<ptrdiff_t>(last),
                     [this](const Token& token) { return Stopped(token.chunk); });
}

uint64_t ReplicatedPass::AskWhatToStop() const {
  uint64_t mask = 0;
  if (!control_.should_stop) return mask;
  for (size_t c = 0; c < plan_.chunks.size(); ++c) {
    if (plan_.chunks[c].mode != TokenMode::kReplicated) continue;
    if (control_.should_stop(static_cast<int>(c))) mask |= uint64_t{1} << c;
  }
  return mask;
}

const std::byte* ReplicatedPass::Gather(Stage stage, int layer, int64_t tokens, std::byte* send) {
  const int n = rank_.ranks();
  if (n == 1) return send;
  const size_t bytes = rank_.device().TokenBytes(stage, tokens, n);
  Communicator::AllGatherArgs args;
  args.label = {OpKind::kAllGather, layer, static_cast<int>(stage), RingStrategy::kPassKv, 0};
  args.send = {send, bytes};
  args.recv = {gathered_, bytes * Index(n)};
  args.after = {transfers_.Record()};
  transfers_.WaitFor(transfers_.AllGather(std::move(args)));
  return gathered_;
}

void ReplicatedPass::FindFaults() {
  constexpr int kPlaces[] = {ValueFault::kTokenQkv, ValueFault::kTokenAttention,
                             ValueFault::kTokenOutput, ValueFault::kTokenFfn};
  std::map<int, ValueFault> first;  // by entry
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const Device::TokenFault& seen = (*faults_[i / kBatchTokens])[i % kBatchTokens];
    const int chunk = tokens_[i].chunk;
    if (seen.layer < 0 || Stopped(chunk)) continue;
    const int entry =
        chunk >= 0 ? chunk : static_cast<int>(plan_.chunks.size() + (i - first_decode_));
    const ValueFault fault = {entry, seen.layer, kPlaces[static_cast<int>(seen.stage)]};
    const auto [it, added] = first.try_emplace(entry, fault);
    if (!added && IsEarlier(fault, it->second)) it->second = fault;
  }
  for (const auto& [entry, fault] : first) result_.faults.push_back(fault);
}

const float* ReplicatedPass::ChunkHidden(int chunk) const {
  return hidden_.data() + last_of_chunk_[Index(chunk)] * Index(rank_.model().width);
}

const float* ReplicatedPass::DecodeHidden(int decode) const {
  return hidden_.data() + (first_decode_ + Index(decode)) * Index(rank_.model().width);
}

}  // namespace ringfill
