// What a rank's device and links do in a second: measured at start (calibrate.h) and kept,
// or set by a simulation. The cost of single operations follows from them in op_cost.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/model/model.h"

namespace ringfill {

// The model, as far as costs depend on it.
struct ModelShape {
  int layers = 0;
  int64_t width = 0;
  int64_t ffn_width = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  double stored_weight_bytes = 2;  // bytes a weight as stored: 0.625 for Q4_1
  int64_t kv_element_bytes = 2;    // of the KV type
  int64_t page_tokens = 64;

  int64_t group() const { return heads / kv_heads; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  // Weights of the half of a layer before the attention (q, k, v) and behind it (o, gate, up,
  // down).
  int64_t project_weights() const { return width * (q_width() + 2 * kv_width()); }
  int64_t finish_weights() const { return q_width() * width + 3 * ffn_width * width; }

  static ModelShape Of(const Model& model, int64_t kv_element_bytes, int64_t page_tokens);
};

// All of one rank, with every thread or multiprocessor that it has.
struct DeviceFigures {
  // Matrix products over many rows. Measured: the second half of one layer and the first of the
  // next over 8 rows and over 512 (fewer when that takes too long); the slope over the rows.
  double product_flops_per_s = 1e11;
  // Weights a second made ready for such products: expanded from their stored type, or read from
  // memory. Measured: the part of those two times that does not grow with the rows.
  double expand_weights_per_s = 1e10;
  // Rows of a tile are computed in multiples of this. Not measured: 1 unless set.
  int64_t product_row_granule = 1;

  // Attention of a tile of `rows` query rows (tokens times heads of a KV group), 4 * head_dim
  // operations for each row and key. Measured with tiles of the size that prefill uses, and with
  // one token's.
  struct Attention {
    int64_t rows = 1;
    double flops_per_s = 1e11;
  };
  Attention large_tile{192, 1e11}, small_tile{1, 1e10};

  // Products of few tokens with weights in their stored type: bytes of weights that stream by a
  // second, and operations a second for the tokens. Measured: the stages of a replicated layer for
  // 1 and for 16 tokens; the time is linear in the tokens.
  double token_bytes_per_s = 1e10;
  double token_flops_per_s = 1e11;

  // Bytes a second copied in memory, read plus write counted once. Measured: pages into a shard.
  double copy_bytes_per_s = 1e10;
  // What starting any operation costs. Measured: the smallest operation, many times.
  double op_overhead_s = 1e-6;
};

// From one rank to another, while every rank sends to the one equally far along the ring: what
// shares a wire then is in the figure.
struct LinkFigures {
  // From both sides ready to the first byte. Measured: exchanges of 64 bytes round the ring.
  double latency_s = 1e-5;
  // Measured: exchanges of 1 MB, both directions at once.
  double bytes_per_s = 1e10;
};

struct Figures {
  std::vector<DeviceFigures> devices;  // [ranks]
  std::vector<LinkFigures> links;      // [from * ranks + to]
  // All-gathers: once per call, and for the bytes that each rank receives.
  LinkFigures gather;

  int ranks() const { return static_cast<int>(devices.size()); }
  const LinkFigures& Link(int from, int to) const {
    return links[static_cast<size_t>(from) * devices.size() + static_cast<size_t>(to)];
  }
  LinkFigures& Link(int from, int to) {
    return links[static_cast<size_t>(from) * devices.size() + static_cast<size_t>(to)];
  }

  // A message between two ranks that are ready.
  double LinkSeconds(int from, int to, int64_t bytes) const {
    const LinkFigures& link = Link(from, to);
    return link.latency_s + static_cast<double>(bytes) / link.bytes_per_s;
  }
  // One all-gather of `bytes` from each rank, all of them ready.
  double GatherSeconds(int64_t bytes) const {
    if (ranks() == 1) return 0;
    return gather.latency_s + static_cast<double>(bytes * (ranks() - 1)) / gather.bytes_per_s;
  }

  // Equal ranks behind equal links; all-gathers run at the links' figures.
  static Figures Uniform(int ranks, const DeviceFigures& device, const LinkFigures& link);
  // Equal ranks on nodes of `ranks_per_node`, in order. Ranks of a node talk over `link`; each node
  // has one `uplink`, which the messages that leave it in one shift of the ring share. All-gathers
  // go round the ring, so each byte crosses an uplink once.
  static Figures OfNodes(int ranks, int ranks_per_node, const DeviceFigures& device,
                         const LinkFigures& link, const LinkFigures& uplink);
};

}  // namespace ringfill
