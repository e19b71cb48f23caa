// Thousands of altered, cut, replayed, reflected and made-up frames and handshakes: every one is
// found, nothing wrong is delivered, and who has not proven himself gets a nonce at most.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/tcp/listener.h"
#include "tests/engine/comm/tcp/sessions.h"

namespace ringfill {
namespace {

using Random = std::mt19937_64;

constexpr int kFrameAttacks = 7000;
constexpr int kHelloAttacks = 3000;

Instant Soon() { return Clock::Real().Now() + std::chrono::seconds(60); }

size_t Below(Random& random, size_t bound) { return random() % bound; }

Bytes Garbage(Random& random, size_t bytes) {
  Bytes made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

struct Stream {
  Bytes bytes;
  std::vector<size_t> ends;  // of the frames in it
  std::vector<Bytes> payloads;
};

Stream MakeStream(Random& random, const FrameKey& key) {
  FrameSealer sealer(key);
  Stream stream;
  for (int i = 0; i < 6; ++i) {
    stream.payloads.push_back(Garbage(random, Below(random, 300)));
    AppendFrame(sealer, stream.bytes, static_cast<uint16_t>(i), stream.payloads.back());
    stream.ends.push_back(stream.bytes.size());
  }
  return stream;
}

// Changes the stream in one of many ways; returns the first byte that is not as it was sent.
size_t Attack(Random& random, const Stream& stream, const Stream& reflected, Bytes& bytes) {
  const size_t frame = Below(random, stream.ends.size());
  const size_t begin = frame == 0 ? 0 : stream.ends[frame - 1], end = stream.ends[frame];
  const auto frame_bytes = [&](const Stream& from, size_t index) {
    const size_t first = index == 0 ? 0 : from.ends[index - 1];
    return Bytes(from.bytes.begin() + first, from.bytes.begin() + from.ends[index]);
  };
  const size_t at = begin + Below(random, end - begin);
  switch (Below(random, 8)) {
    case 0:  // a bit
      bytes[at] ^= static_cast<std::byte>(1 << Below(random, 8));
      return at;
    case 1: {  // many bytes
      const size_t count = 1 + Below(random, bytes.size() - at);
      const Bytes made = Garbage(random, count);
      std::copy(made.begin(), made.end(), bytes.begin() + at);
      bytes[at] = stream.bytes[at] ^ std::byte{0x10};
      return at;
    }
    case 2: {  // left out
      const size_t count = 1 + Below(random, std::min<size_t>(bytes.size() - at, 100));
      bytes.erase(bytes.begin() + at, bytes.begin() + at + count);
      return at;
    }
    case 3: {  // put in
      const Bytes made = Garbage(random, 1 + Below(random, 100));
      bytes.insert(bytes.begin() + at, made.begin(), made.end());
      return at;
    }
    case 4: {  // an earlier frame, or this one, once more
      const Bytes again = frame_bytes(stream, Below(random, frame + 1));
      bytes.insert(bytes.begin() + end, again.begin(), again.end());
      return end;
    }
    case 5: {  // two frames change places
      const size_t other = (frame + 1 + Below(random, stream.ends.size() - 1)) % stream.ends.size();
      const size_t low = std::min(frame, other), high = std::max(frame, other);
      bytes.clear();
      for (size_t i = 0; i < stream.ends.size(); ++i) {
        const Bytes next = frame_bytes(stream, i == low ? high : i == high ? low : i);
        bytes.insert(bytes.end(), next.begin(), next.end());
      }
      return low == 0 ? 0 : stream.ends[low - 1];
    }
    case 6: {  // a frame of the other direction in this one's place
      const Bytes theirs = frame_bytes(reflected, frame);
      bytes.erase(bytes.begin() + begin, bytes.begin() + end);
      bytes.insert(bytes.begin() + begin, theirs.begin(), theirs.end());
      return begin;
    }
    default:  // the stream is cut
      bytes.resize(at);
      return at;
  }
}

TEST(AttackTest, FramesThatWereTouchedAreFound) {
  Random random(20240611);
  for (int attempt = 0; attempt < kFrameAttacks; ++attempt) {
    SCOPED_TRACE(attempt);
    FrameKey key, other_direction;
    FillRandom(key);
    FillRandom(other_direction);
    const Stream stream = MakeStream(random, key);
    const Stream reflected = MakeStream(random, other_direction);
    Bytes bytes = stream.bytes;
    const size_t touched = Attack(random, stream, reflected, bytes);
    const size_t intact =
        std::upper_bound(stream.ends.begin(), stream.ends.end(), touched) - stream.ends.begin();
    FrameDecoder decoder(key);
    CollectingSink sink;
    const absl::Status status = Feed(decoder, sink, bytes, 1 + Below(random, 500));
    // Only what lies before the touched byte is delivered, all of it right.
    ASSERT_LE(sink.got.size(), intact);
    for (size_t i = 0; i < sink.got.size(); ++i) {
      ASSERT_EQ(sink.got[i].header.type, i);
      ASSERT_EQ(sink.got[i].payload, stream.payloads[i]);
    }
    // And the rest is refused, or waited for in vain until the end of the stream tells.
    const bool cut = bytes.size() <= touched;
    ASSERT_TRUE(absl::IsDataLoss(status) || decoder.mid_frame() || cut) << status;
    ASSERT_EQ(sink.got.size(), intact);
  }
}

// What a caller did and what it got to see.
struct Recorded {
  Bytes hello, proof;
};

class Attacker {
 public:
  explicit Attacker(const Listener& listener)
      : socket_(ConnectTcp(ParseHostPort(listener.address()).value(), Soon()).value()) {}

  void Send(const Bytes& bytes) {
    const iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    if (!bytes.empty()) WriteSome(socket_, std::span(&part, 1)).IgnoreError();
  }
  // At least `bytes`, unless the connection ends.
  Bytes Read(size_t bytes) {
    while (seen_.size() < bytes && ReadSome()) continue;
    return seen_;
  }
  // Everything that was ever sent to it.
  Bytes ReadToTheEnd() {
    while (ReadSome()) continue;
    return seen_;
  }
  void EndWrites() { ShutdownWrites(socket_); }

 private:
  bool ReadSome() {
    std::byte buffer[512];
    const iovec part = {buffer, sizeof(buffer)};
    if (!AwaitSocket(socket_, POLLIN, Soon(), "an answer").ok()) return false;
    const auto moved = ringfill::ReadSome(socket_, std::span(&part, 1));
    if (!moved.ok() || moved->bytes == 0) return false;
    seen_.insert(seen_.end(), buffer, buffer + moved->bytes);
    return true;
  }

  Fd socket_;
  Bytes seen_;
};

// Sends `attempt`'s kind of attack; returns what the attacker was sent.
Bytes AttackListener(Random& random, const Listener& listener, const Recorded& recorded) {
  Attacker attacker(listener);
  const Secret guess = Secret::Random();
  Handshake wrong(Handshake::Side::kInitiator, RankCredentials(guess, 0));
  Bytes hello = wrong.TakeOutput();
  const auto flip = [&](Bytes bytes) {
    bytes[Below(random, bytes.size())] ^= static_cast<std::byte>(1 << Below(random, 8));
    return bytes;
  };
  switch (Below(random, 8)) {
    case 0:
      attacker.Send(Garbage(random, 1 + Below(random, 400)));
      break;
    case 1:  // another secret
      attacker.Send(hello);
      if (const Bytes answer = attacker.Read(Handshake::kHelloBytes);
          answer.size() == Handshake::kHelloBytes && wrong.Receive(answer).ok()) {
        attacker.Send(wrong.TakeOutput());
      }
      break;
    case 2:  // a recording
      attacker.Send(recorded.hello);
      attacker.Read(Handshake::kHelloBytes);
      attacker.Send(recorded.proof);
      break;
    case 3:  // a recording with a bit turned over
      attacker.Send(flip(recorded.hello));
      attacker.Send(flip(recorded.proof));
      break;
    case 4: {  // the listener's own hello sent back
      attacker.Send(hello);
      Bytes answer = attacker.Read(Handshake::kHelloBytes);
      attacker.Send(answer);
      Attacker second(listener);
      second.Send(answer);
      second.EndWrites();
      EXPECT_TRUE(second.ReadToTheEnd().empty());
      break;
    }
    case 5:  // a proof without a hello, or both in the wrong order
      attacker.Send(recorded.proof);
      attacker.Send(recorded.hello);
      break;
    case 6:  // cut
      hello.resize(Below(random, hello.size()));
      attacker.Send(hello);
      break;
    default:  // a payload right after the hello, as if proven
      attacker.Send(hello);
      attacker.Send(Garbage(random, 200));
      break;
  }
  attacker.EndWrites();
  return attacker.ReadToTheEnd();
}

TEST(AttackTest, CallersThatCannotProveThemselvesGetANonceAtMost) {
  const auto listener = Listener::Bind().value();
  const Credentials own = RankCredentials(TestSecret(), 1);
  Recorded recorded;
  {
    Handshake caller(Handshake::Side::kInitiator, RankCredentials(TestSecret(), 0));
    Handshake called(Handshake::Side::kAcceptor, own);
    recorded.hello = caller.TakeOutput();
    ASSERT_TRUE(called.Receive(recorded.hello).ok());
    ASSERT_TRUE(caller.Receive(called.TakeOutput()).ok());
    recorded.proof = caller.TakeOutput();
    ASSERT_TRUE(called.Receive(recorded.proof).ok());
  }
  std::atomic<int> let_in{0};
  std::thread accepting([&] {
    for (;;) {
      const auto accepted = listener->Accept(own, Soon());
      if (!accepted.ok()) break;
      ++let_in;
    }
  });
  Random random(77);
  for (int attempt = 0; attempt < kHelloAttacks; ++attempt) {
    const Bytes seen = AttackListener(random, *listener, recorded);
    EXPECT_LE(seen.size(), Handshake::kHelloBytes) << attempt;
    if (HasFailure()) break;
  }
  EXPECT_EQ(let_in, 0);
  EXPECT_GE(listener->refused(), kHelloAttacks);
  // Who knows the secret still comes in.
  EXPECT_TRUE(ConnectProven(listener->address(), RankCredentials(TestSecret(), 0), Soon()).ok());
  listener->Close();
  accepting.join();
  EXPECT_EQ(let_in, 1);
}

}  // namespace
}  // namespace ringfill
