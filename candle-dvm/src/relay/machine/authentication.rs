//! The relay asks who we are (NIP-42).

use super::publications::OutgoingState;
use super::subscriptions::SubscriptionState;
use super::{Action, Machine, SECOND};
use nostr::prelude::{ClientMessage, EventBuilder, FinalizeEvent, Kind, Tag, Timestamp};

/// Number of answers to AUTH challenges on one connection, and of challenges before the connection is closed.
const AUTH_ANSWERS: u32 = 3;
const AUTH_CHALLENGES: u32 = 50;
/// For how long a relay may say nothing to our answer before what waits for it is tried.
const AUTH_SILENCE: u64 = 5 * SECOND;

impl Machine {
    pub(super) fn challenge(&mut self, challenge: &str, now: u64) {
        self.challenges += 1;
        if self.challenges > AUTH_CHALLENGES {
            return self.give_up("too many AUTH challenges", now);
        }
        if self.challenges > AUTH_ANSWERS || challenge.len() > 1024 {
            return;
        }
        // Kind 22242 of NIP-42.
        let event = EventBuilder::new(Kind::from_u16(22242), "")
            .tags([
                Tag::custom("relay", [self.url.as_str()]),
                Tag::custom("challenge", [challenge]),
            ])
            .custom_created_at(Timestamp::from(self.date))
            .finalize(&*self.keys);
        match event {
            Ok(event) => {
                self.auth = Some(event.id);
                self.auth_sent = Some(now);
                let answer = ClientMessage::auth(event).as_json();
                self.actions.push_back(Action::Send(answer));
                self.try_again(|at| at.min(now + AUTH_SILENCE));
            }
            Err(err) => tracing::warn!(relay = self.url, error = %err, "cannot sign for AUTH"),
        }
    }

    pub(super) fn auth_answered(&mut self, accepted: bool, message: &str, now: u64) {
        self.auth = None;
        self.authenticated = accepted;
        let wait = if accepted { 0 } else { 60 * SECOND };
        if !accepted {
            let reason: String = message.chars().take(200).collect();
            tracing::warn!(
                relay = self.url,
                reason,
                "the relay rejected our authentication"
            );
        }
        self.try_again(|_| now + wait);
    }

    /// Changes the time at which what needs authentication is sent again.
    fn try_again(&mut self, change: impl Fn(u64) -> u64) {
        for subscription in self.subscriptions.values_mut() {
            for state in subscription.states() {
                if let SubscriptionState::NeedsAuth(at) = state {
                    *at = change(*at);
                }
            }
        }
        for outgoing in self.outgoing.values_mut() {
            if let OutgoingState::NeedsAuth(at) = &mut outgoing.state {
                *at = change(*at);
            }
        }
    }
}
