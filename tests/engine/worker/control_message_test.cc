#include "engine/worker/control_message.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

JoinMessage SomeJoin() {
  JoinMessage join;
  join.rank = 3;
  join.model_digest[0] = std::byte{1};
  join.model_name = "tiny";
  join.dtype = WantedDType::kBF16;
  join.best_isa = CpuIsa::kAvx512Bf16;
  join.data_address = "127.0.0.1:4000";
  join.host = "here";
  join.boot_id = "b-1";
  join.pid = 4711;
  join.gpu = {2, "device 2 (a GPU, sm_90)", "0000:3b:00", int64_t{80} << 30};
  return join;
}

WelcomeMessage SomeWelcome() {
  WelcomeMessage welcome;
  welcome.rank = 1;
  welcome.ranks = 4;
  welcome.cluster = 99;
  welcome.model_digest[0] = std::byte{1};
  welcome.dtype = DType::kBF16;
  welcome.kv_dtype = DType::kBF16;
  welcome.isa = CpuIsa::kAvx2;
  welcome.strict = true;
  welcome.page_tokens = 64;
  welcome.pages = 1000;
  welcome.threads = 2;
  welcome.chunk_tokens = 512;
  welcome.min_round_timeout_ms = 30000;
  welcome.heartbeat_timeout_ms = 3000;
  welcome.geometry = {30, 3, 64, 8192};
  return welcome;
}

FormMessage SomeGpuForm() {
  FormMessage form{7, 9, 1, {"a:1", "b:2"}, 2000, true};
  form.group_id.assign(kGroupIdBytes, '\0');
  form.group_id[3] = 'i';
  return form;
}

// One of each, in the order of their numbers.
std::vector<ControlMessage> AllMessages() {
  return {SomeJoin(),
          SomeWelcome(),
          RefusedMessage{true, "rank 1 is taken"},
          ReadyMessage{3, 8},
          SomeGpuForm(),
          FormedMessage{9, absl::DeadlineExceededError("late"), {0, 3}},
          StepMessage{"a plan"},
          StopMessage{7, 8, 5},
          ProgressMessage{7, 8, 12},
          ResultMessage{7, 8, "a result"},
          AbortMessage{7, absl::UnavailableError("rank 2 is gone")},
          TraceMessage{true},
          MeasureMessage{4, 1000},
          MeasuredMessage{4, absl::OkStatus(), {1.5, 2}},
          BeatMessage{-5},
          ByeMessage{"enough"},
          DeadLinkMessage{9, 2}};
}

absl::StatusOr<ControlMessage> Decode(const EncodedControl& message) {
  return DecodeControl(message.type, std::as_bytes(std::span(message.payload)));
}

TEST(ControlMessageTest, RoundTrips) {
  const std::vector<ControlMessage> all = AllMessages();
  ASSERT_EQ(all.size(), std::variant_size_v<ControlMessage>);
  for (size_t i = 0; i < all.size(); ++i) {
    const EncodedControl encoded = EncodeControl(all[i]);
    SCOPED_TRACE(ControlName(encoded.type));
    EXPECT_EQ(encoded.type, i + 1);
    const auto decoded = Decode(encoded);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->index(), i);
    EXPECT_EQ(EncodeControl(*decoded).payload, encoded.payload);
  }
}

TEST(ControlMessageTest, KeepsEveryField) {
  const auto join = std::get<JoinMessage>(*Decode(EncodeControl(SomeJoin())));
  EXPECT_EQ(join.rank, 3);
  EXPECT_EQ(join.model_digest, SomeJoin().model_digest);
  EXPECT_EQ(join.dtype, WantedDType::kBF16);
  EXPECT_EQ(join.kv_dtype, WantedDType::kAny);
  EXPECT_EQ(join.best_isa, CpuIsa::kAvx512Bf16);
  EXPECT_EQ(join.data_address, "127.0.0.1:4000");
  EXPECT_EQ(join.host, "here");
  EXPECT_EQ(join.boot_id, "b-1");
  EXPECT_EQ(join.pid, 4711);
  EXPECT_EQ(join.gpu.device, 2);
  EXPECT_EQ(join.gpu.name, "device 2 (a GPU, sm_90)");
  EXPECT_EQ(join.gpu.place, "0000:3b:00");
  EXPECT_EQ(join.gpu.free_bytes, int64_t{80} << 30);
  const auto welcome = std::get<WelcomeMessage>(*Decode(EncodeControl(SomeWelcome())));
  EXPECT_EQ(welcome.ranks, 4);
  EXPECT_EQ(welcome.cluster, 99u);
  EXPECT_TRUE(welcome.strict);
  EXPECT_EQ(welcome.pages, 1000);
  EXPECT_EQ(welcome.device, RankDevice::kCpu);
  EXPECT_EQ(welcome.chunk_tokens, 512);
  EXPECT_EQ(welcome.geometry.block_bytes, 8192u);
  const auto formed = std::get<FormedMessage>(
      *Decode(EncodeControl(FormedMessage{9, absl::DeadlineExceededError("late"), {0, 3}})));
  EXPECT_EQ(formed.status, absl::DeadlineExceededError("late"));
  EXPECT_THAT(formed.missing, testing::ElementsAre(0, 3));
  const auto dead = std::get<DeadLinkMessage>(*Decode(EncodeControl(DeadLinkMessage{9, 2})));
  EXPECT_EQ(dead.attempt, 9u);
  EXPECT_EQ(dead.peer, 2);
  const auto form =
      std::get<FormMessage>(*Decode(EncodeControl(FormMessage{7, 9, 1, {"a:1", "b:2"}, 2000})));
  EXPECT_THAT(form.members, testing::ElementsAre("a:1", "b:2"));
  EXPECT_THAT(form.group_id, IsEmpty());
  EXPECT_EQ(std::get<FormMessage>(*Decode(EncodeControl(SomeGpuForm()))).group_id,
            SomeGpuForm().group_id);
}

TEST(ControlMessageTest, CutOffMessagesAreRefused) {
  for (const ControlMessage& message : AllMessages()) {
    const EncodedControl whole = EncodeControl(message);
    SCOPED_TRACE(ControlName(whole.type));
    // The last field of these two is whatever comes.
    if (std::holds_alternative<StepMessage>(message)) continue;
    const size_t rest = std::holds_alternative<ResultMessage>(message) ? 8 : 0;
    for (size_t size = 0; size + rest < whole.payload.size(); ++size) {
      const auto decoded = Decode({whole.type, whole.payload.substr(0, size)});
      ASSERT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss) << size;
      EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(ControlName(whole.type)));
    }
    if (rest > 0) continue;
    EXPECT_EQ(Decode({whole.type, whole.payload + "x"}).status().code(),
              absl::StatusCode::kDataLoss);
  }
}

// A message that is let through is well formed: it encodes to the bytes it came from.
TEST(ControlMessageTest, FlippedBitsNeverGiveAnythingElse) {
  std::mt19937 rng(1);
  int refused = 0;
  for (const ControlMessage& message : AllMessages()) {
    const EncodedControl whole = EncodeControl(message);
    for (size_t bit = 0; bit < 8 * whole.payload.size(); ++bit) {
      EncodedControl spoiled = whole;
      spoiled.payload[bit / 8] ^= static_cast<char>(1 << (bit % 8));
      const auto decoded = Decode(spoiled);
      if (!decoded.ok()) {
        ++refused;
        continue;
      }
      const auto* join = std::get_if<JoinMessage>(&*decoded);
      if (join != nullptr && join->version != kControlVersion) continue;
      EXPECT_EQ(EncodeControl(*decoded).payload, spoiled.payload);
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(ControlMessageTest, UnknownNumbersAreRefused) {
  for (const uint16_t type : {0, 18, 65535}) {
    const auto decoded = Decode({type, ""});
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(decoded.status().message()),
                HasSubstr("message " + std::to_string(type)));
  }
}

TEST(ControlMessageTest, CountsBeyondTheirBoundAreRefused) {
  FormMessage form;
  form.members.assign(kMaxMembers, "a:1");
  EXPECT_TRUE(Decode(EncodeControl(form)).ok());
  form.rank = kMaxMembers;
  EXPECT_FALSE(Decode(EncodeControl(form)).ok());
  EncodedControl many = EncodeControl(FormMessage{1, 1, 0, {"a:1"}, 1});
  const size_t count_at = 8 + 8 + 4;
  many.payload[count_at] = '\x50';
  many.payload += std::string(4096, '\0');
  EXPECT_THAT(std::string(Decode(many).status().message()), HasSubstr("members"));
}

TEST(ControlMessageTest, ARankThatIsNoMemberIsRefused) {
  FormMessage form;
  form.members = {"a:1", "b:2"};
  form.rank = 1;
  EXPECT_TRUE(Decode(EncodeControl(form)).ok());
  form.rank = 2;
  const absl::Status status = Decode(EncodeControl(form)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(std::string(status.message()), "FORM: rank is not one of the members");
}

TEST(ControlMessageTest, HostileValuesAreRefusedByName) {
  const auto refusal = [](const ControlMessage& message) {
    const absl::Status status = Decode(EncodeControl(message)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    return std::string(status.message());
  };
  FormMessage form = SomeGpuForm();
  form.group_id.pop_back();
  EXPECT_EQ(refusal(form), "FORM: group id has 127 bytes; it must have none or 128");
  JoinMessage join = SomeJoin();
  join.gpu.device = kMaxGpus;
  EXPECT_THAT(refusal(join), HasSubstr("JOIN: GPU is 1024, outside -1 to 1023"));
  join = SomeJoin();
  join.gpu.free_bytes = -1;
  EXPECT_THAT(refusal(join), HasSubstr("JOIN: free bytes of the GPU is -1"));
  WelcomeMessage welcome = SomeWelcome();
  welcome.device = static_cast<RankDevice>(2);
  EXPECT_THAT(refusal(welcome), HasSubstr("WELCOME: device"));
  welcome = SomeWelcome();
  welcome.chunk_tokens = int64_t{1} << 40;
  EXPECT_THAT(refusal(welcome), HasSubstr("WELCOME: chunk tokens is 1099511627776"));
  welcome = SomeWelcome();
  welcome.device = RankDevice::kCuda;
  EXPECT_EQ(refusal(welcome), "WELCOME: strict is there on the CPU alone");
}

TEST(ControlMessageTest, LongReasonsAreCut) {
  const auto decoded = Decode(EncodeControl(ByeMessage{std::string(100000, 'x')}));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<ByeMessage>(*decoded).reason.size(), kMaxControlText);
}

// Of another version nothing but the version is read, so that it can be refused by name.
TEST(ControlMessageTest, AnotherVersionIsKnownAsSuch) {
  JoinMessage join = SomeJoin();
  join.version = kControlVersion + 1;
  EncodedControl encoded = EncodeControl(join);
  encoded.payload.resize(8);
  encoded.payload += "what a later version says";
  const auto decoded = Decode(encoded);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<JoinMessage>(*decoded).version, kControlVersion + 1);
  EXPECT_THAT(JoinMismatch(SomeWelcome(), std::get<JoinMessage>(*decoded)),
              HasSubstr(absl::StrCat("protocol version: the leader has ", kControlVersion,
                                     ", this worker ", kControlVersion + 1)));
}

TEST(ControlMessageTest, FiguresComeBackAsTheyWere) {
  Figures figures = Figures::Uniform(3, DeviceFigures(), LinkFigures());
  figures.devices[1].product_flops_per_s = 5;
  figures.devices[2].large_tile.rows = 77;
  figures.Link(1, 2).latency_s = 0.25;
  figures.gather.bytes_per_s = 12;
  const std::vector<double> numbers = FiguresToNumbers(figures);
  const auto back = FiguresFromNumbers(numbers, 3);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->devices[1].product_flops_per_s, 5);
  EXPECT_EQ(back->devices[2].large_tile.rows, 77);
  EXPECT_EQ(back->Link(1, 2).latency_s, 0.25);
  EXPECT_EQ(back->gather.bytes_per_s, 12);
  EXPECT_EQ(FiguresToNumbers(*back), numbers);
  EXPECT_FALSE(FiguresFromNumbers(numbers, 2).ok());
  for (const double bad : {-1.0, std::nan(""), HUGE_VAL}) {
    std::vector<double> spoiled = numbers;
    spoiled[4] = bad;
    EXPECT_FALSE(FiguresFromNumbers(spoiled, 3).ok());
  }
}

TEST(MismatchTest, NamesWhatDiffers) {
  const WelcomeMessage leader = SomeWelcome();
  JoinMessage join = SomeJoin();
  EXPECT_THAT(JoinMismatch(leader, join), IsEmpty());
  join.model_digest[1] = std::byte{1};
  EXPECT_THAT(JoinMismatch(leader, join), HasSubstr("model digest"));
  EXPECT_THAT(JoinMismatch(leader, join), HasSubstr("tiny"));
  join = SomeJoin();
  join.dtype = WantedDType::kF32;
  EXPECT_THAT(JoinMismatch(leader, join),
              HasSubstr("compute.dtype: the leader has bf16, this worker f32"));
  join = SomeJoin();
  join.kv_dtype = WantedDType::kF32;
  EXPECT_THAT(JoinMismatch(leader, join), HasSubstr("kv.dtype"));
  join = SomeJoin();
  join.best_isa = CpuIsa::kBaseline;
  EXPECT_THAT(JoinMismatch(leader, join), HasSubstr("compute.isa"));

  // Where ranks compute on GPUs, that is what counts.
  WelcomeMessage gpus = leader;
  gpus.device = RankDevice::kCuda;
  EXPECT_THAT(JoinMismatch(gpus, join), IsEmpty());
  join.gpu = {};
  join.gpu.name = "there is no driver";
  EXPECT_EQ(JoinMismatch(gpus, join),
            "ranks.backend: the leader's ranks compute on GPUs, this worker has none: there is no "
            "driver");

  KvGeometry own = leader.geometry;
  EXPECT_THAT(GeometryMismatch(leader.geometry, own), IsEmpty());
  own.page_tokens = 32;
  EXPECT_THAT(GeometryMismatch(leader.geometry, own),
              HasSubstr("kv.page_tokens: the leader has 64, this worker 32"));
}

}  // namespace
}  // namespace ringfill
