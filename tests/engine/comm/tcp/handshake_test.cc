#include "engine/comm/tcp/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "tests/engine/comm/tcp/sessions.h"

namespace ringfill {
namespace {

using Side = Handshake::Side;

// What went over the wire, in order: initiator's hello, acceptor's, initiator's proof, acceptor's.
struct Recording {
  Bytes messages[4];
};

// Runs both sides; `alter` may change message i on its way. Returns the first failure.
absl::Status Shake(Handshake& initiator, Handshake& acceptor, Recording* recording = nullptr,
                   const std::function<void(int, Bytes&)>& alter = nullptr) {
  Handshake* const sides[] = {&initiator, &acceptor};
  for (int i = 0; i < 4; ++i) {
    Bytes message = sides[i % 2]->TakeOutput();
    if (recording != nullptr) recording->messages[i] = message;
    if (alter) alter(i, message);
    Handshake& to = *sides[(i + 1) % 2];
    if (message.size() != to.wanted()) return absl::InternalError("a message of the wrong size");
    RF_RETURN_IF_ERROR(to.Receive(message));
  }
  return absl::OkStatus();
}

TEST(HandshakeTest, BothEndsKnowEachOtherAndShareKeys) {
  Handshake initiator(Side::kInitiator, RankCredentials(TestSecret(), 0));
  Handshake acceptor(Side::kAcceptor, RankCredentials(TestSecret(), 1));
  EXPECT_TRUE(acceptor.TakeOutput().empty()) << "speaks before it is spoken to";
  ASSERT_TRUE(Shake(initiator, acceptor).ok());
  ASSERT_TRUE(initiator.done() && acceptor.done());
  EXPECT_EQ(initiator.wanted(), 0u);
  EXPECT_EQ(initiator.peer().rank, 1u);
  EXPECT_EQ(acceptor.peer().rank, 0u);
  EXPECT_EQ(acceptor.peer().epoch, 5u);
  EXPECT_EQ(acceptor.peer().ranks, 2u);
  EXPECT_EQ(initiator.keys().send, acceptor.keys().receive);
  EXPECT_EQ(initiator.keys().receive, acceptor.keys().send);
  EXPECT_NE(initiator.keys().send, initiator.keys().receive);
}

TEST(HandshakeTest, KeysDifferFromConnectionToConnection) {
  std::optional<FrameKey> before;
  for (int i = 0; i < 3; ++i) {
    Handshake initiator(Side::kInitiator, RankCredentials(TestSecret(), 0));
    Handshake acceptor(Side::kAcceptor, RankCredentials(TestSecret(), 1));
    ASSERT_TRUE(Shake(initiator, acceptor).ok());
    EXPECT_NE(before, initiator.keys().send);
    before = initiator.keys().send;
  }
}

TEST(HandshakeTest, AnotherSecretIsRefusedBeforeTheAcceptorProvesItself) {
  const Secret other = Secret::FromBytes("a secret of the testS").value();
  Handshake initiator(Side::kInitiator, RankCredentials(other, 0));
  Handshake acceptor(Side::kAcceptor, RankCredentials(TestSecret(), 1));
  Recording recording;
  EXPECT_TRUE(absl::IsUnauthenticated(Shake(initiator, acceptor, &recording)));
  EXPECT_FALSE(acceptor.done());
  EXPECT_TRUE(acceptor.TakeOutput().empty());
}

TEST(HandshakeTest, AcceptorWithAnotherSecretIsRefused) {
  Handshake initiator(Side::kInitiator, RankCredentials(TestSecret(), 0));
  Handshake impostor(Side::kAcceptor, RankCredentials(TestSecret(), 1));
  const auto forge = [](int i, Bytes& message) {
    if (i == 3) std::fill(message.begin() + 8, message.end(), std::byte{7});
  };
  EXPECT_TRUE(absl::IsUnauthenticated(Shake(initiator, impostor, nullptr, forge)));
  EXPECT_FALSE(initiator.done());
}

TEST(HandshakeTest, EveryBitOfEveryMessageMatters) {
  const size_t sizes[] = {Handshake::kHelloBytes, Handshake::kHelloBytes, Handshake::kProofBytes,
                          Handshake::kProofBytes};
  for (int target = 0; target < 4; ++target) {
    for (size_t bit = 0; bit < sizes[target] * 8; ++bit) {
      Handshake initiator(Side::kInitiator, RankCredentials(TestSecret(), 0));
      Handshake acceptor(Side::kAcceptor, RankCredentials(TestSecret(), 1));
      const auto flip = [&](int i, Bytes& message) {
        if (i == target) message[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      };
      ASSERT_TRUE(absl::IsUnauthenticated(Shake(initiator, acceptor, nullptr, flip)))
          << "message " << target << " bit " << bit;
      ASSERT_FALSE(initiator.done() && acceptor.done());
    }
  }
}

TEST(HandshakeTest, RecordedMessagesDoNotOpenANewConnection) {
  Recording recording;
  {
    Handshake initiator(Side::kInitiator, RankCredentials(TestSecret(), 0));
    Handshake acceptor(Side::kAcceptor, RankCredentials(TestSecret(), 1));
    ASSERT_TRUE(Shake(initiator, acceptor, &recording).ok());
  }
  Handshake acceptor(Side::kAcceptor, RankCredentials(TestSecret(), 1));
  ASSERT_TRUE(acceptor.Receive(recording.messages[0]).ok());
  acceptor.TakeOutput();
  EXPECT_TRUE(absl::IsUnauthenticated(acceptor.Receive(recording.messages[2])));
  EXPECT_TRUE(acceptor.TakeOutput().empty());

  Handshake initiator(Side::kInitiator, RankCredentials(TestSecret(), 0));
  initiator.TakeOutput();
  ASSERT_TRUE(initiator.Receive(recording.messages[1]).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(initiator.Receive(recording.messages[3])));
}

TEST(HandshakeTest, ReflectedMessagesAreRefused) {
  Handshake initiator(Side::kInitiator, RankCredentials(TestSecret(), 0));
  EXPECT_TRUE(absl::IsUnauthenticated(initiator.Receive(initiator.TakeOutput())));

  // With the side forged the nonce still gives it away.
  Handshake second(Side::kInitiator, RankCredentials(TestSecret(), 0));
  Bytes hello = second.TakeOutput();
  hello[6] = static_cast<std::byte>(Side::kAcceptor);
  EXPECT_TRUE(absl::IsUnauthenticated(second.Receive(hello)));

  // A second handshake with the acceptor as an oracle: its proofs are no initiator's proofs.
  Handshake victim(Side::kAcceptor, RankCredentials(TestSecret(), 1));
  Handshake honest(Side::kInitiator, RankCredentials(TestSecret(), 0));
  ASSERT_TRUE(victim.Receive(honest.TakeOutput()).ok());
  ASSERT_TRUE(honest.Receive(victim.TakeOutput()).ok());
  Bytes proof = honest.TakeOutput();
  proof[6] = static_cast<std::byte>(Side::kAcceptor);
  EXPECT_TRUE(absl::IsUnauthenticated(honest.Receive(proof)));
}

TEST(HandshakeTest, OtherRolesAndDeploymentsAreRefusedThoughTheyKnowTheSecret) {
  Credentials worker = RankCredentials(TestSecret(), 0);
  worker.own.role = PeerRole::kWorker;
  Credentials stranger = RankCredentials(TestSecret(), 0);
  stranger.own.cluster = 78;
  for (const Credentials& credentials : {worker, stranger}) {
    Handshake initiator(Side::kInitiator, credentials);
    Handshake acceptor(Side::kAcceptor, RankCredentials(TestSecret(), 1));
    EXPECT_TRUE(absl::IsUnauthenticated(Shake(initiator, acceptor)));
    EXPECT_FALSE(acceptor.done());
  }
}

}  // namespace
}  // namespace ringfill
