#include "engine/prefill/kv_homing.h"

namespace ringfill {

int64_t HeaderSlots(Device& device) {
  const size_t row = device.KvRowBytes();
  return static_cast<int64_t>((sizeof(RoundHeader) + row - 1) / row);
}

KvHoming::KvHoming(PassContext& pass, std::byte* outbox)
    : pass_(pass), outbox_(outbox), row_bytes_(pass.rank.device().KvRowBytes()) {
  const int n = pass.ranks();
  out_ = pass.layout.SectionsOf(pass.me());
  coming_.resize(static_cast<size_t>(n));
  size_t bytes = 0;
  for (int source = 0; source < n; ++source) {
    const int64_t rows = pass.layout.SectionsOf(source)[static_cast<size_t>(pass.me())].rows;
    in_rows_.push_back(rows);
    stores_.push_back(
        std::make_shared<const std::vector<KvStore>>(pass.layout.StoresFrom(source, pass.me())));
    in_at_.push_back(bytes);
    // Its own rows are stored from the outbox.
    if (source != pass.me() && rows > 0) {
      bytes += sizeof(RoundHeader) + static_cast<size_t>(rows) * row_bytes_;
    }
  }
  if (bytes > 0) inbox_ = pass.rank.Reserve("kv inbox", 0, bytes);
}

std::span<std::byte> KvHoming::OutMessage(int home) const {
  const KvSection& section = out_[static_cast<size_t>(home)];
  if (section.rows == 0) return {};
  return {outbox_ + static_cast<size_t>(section.slot) * row_bytes_ - sizeof(RoundHeader),
          sizeof(RoundHeader) + static_cast<size_t>(section.rows) * row_bytes_};
}

std::span<std::byte> KvHoming::InMessage(int source) const {
  const int64_t rows = in_rows_[static_cast<size_t>(source)];
  if (rows == 0) return {};
  return {inbox_ + in_at_[static_cast<size_t>(source)],
          sizeof(RoundHeader) + static_cast<size_t>(rows) * row_bytes_};
}

void KvHoming::Start(const AttentionLayer& layer) {
  const int n = pass_.ranks();
  Device& device = pass_.rank.device();
  bool any = false;
  for (int k = 1; k < n; ++k) {
    const int home = pass_.Beyond(k);
    const std::span<std::byte> message = OutMessage(home);
    any |= !message.empty() || !InMessage(home).empty();
    if (message.empty()) continue;
    RoundHeader header = pass_.Header(layer.layer, 0, pass_.me(), RoundKind::kKvRows,
                                      message.size() - sizeof(RoundHeader));
    header.stop_mask = layer.stop_mask;
    device.WriteHeader(header, message.data());
  }
  if (!any) return;
  const EventPtr written = pass_.transfers.Record();
  for (int k = 1; k < n; ++k) {
    Communicator::ExchangeArgs args;
    args.label = {OpKind::kExchange, layer.layer, -1, RingStrategy::kPassKv, 0};
    args.to = pass_.Beyond(k);
    args.from = pass_.Beyond(-k);
    args.send = OutMessage(args.to);
    args.recv = InMessage(args.from);
    args.after = {written};
    if (args.send.empty() && args.recv.empty()) continue;
    coming_[static_cast<size_t>(k)] =
        pass_.transfers.Exchange(std::move(args), StepTransfers::Purpose::kOther);
  }
}

void KvHoming::Finish(const AttentionLayer& layer) {
  Device& device = pass_.rank.device();
  const KvSection& own = out_[static_cast<size_t>(pass_.me())];
  if (own.rows > 0) {
    device.StoreRows(layer.layer, stores_[static_cast<size_t>(pass_.me())],
                     outbox_ + static_cast<size_t>(own.slot) * row_bytes_);
  }
  for (int k = 1; k < pass_.ranks(); ++k) {
    const int source = pass_.Beyond(-k);
    pass_.transfers.WaitFor(std::move(coming_[static_cast<size_t>(k)]));
    coming_[static_cast<size_t>(k)] = nullptr;
    const std::span<std::byte> message = InMessage(source);
    if (message.empty()) continue;
    device.CheckHeader(pass_.Header(layer.layer, 0, source, RoundKind::kKvRows,
                                    message.size() - sizeof(RoundHeader)),
                       message.data(), layer.flags);
    device.StoreRows(layer.layer, stores_[static_cast<size_t>(source)],
                     message.data() + sizeof(RoundHeader));
  }
}

}  // namespace ringfill
