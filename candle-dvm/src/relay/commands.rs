//! The commands that wait for a driver: bounded, whatever keeps it from taking them.

use super::driver::Command;
use super::machine::Keep;
use futures_channel::mpsc;
use futures_util::StreamExt;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Publications that wait, at most: such as only matter now, and others.
const MOST_NOW: usize = 64;
const MOST: usize = 1024;

type Queue = Arc<Mutex<VecDeque<Command>>>;

/// The sending end of the command queue.
pub(super) struct Sender {
    queue: Queue,
    wake: Mutex<mpsc::Sender<()>>,
}

/// The receiving end.
pub(super) struct Inbox {
    queue: Queue,
    wake: mpsc::Receiver<()>,
}

pub(super) fn channel() -> (Sender, Inbox) {
    let queue = Queue::default();
    let (wake, woken) = mpsc::channel(0);
    let inbox = Inbox {
        queue: queue.clone(),
        wake: woken,
    };
    let wake = Mutex::new(wake);
    (Sender { queue, wake }, inbox)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sender {
    pub(super) fn send(&self, command: Command) {
        push(&mut lock(&self.queue), command);
        // If the channel is full, the driver is awake already; if it is closed, there is no driver.
        let _ = lock(&self.wake).try_send(());
    }
}

impl Inbox {
    /// Waits for commands. `false` if there will be none any more.
    pub(super) async fn wait(&mut self) -> bool {
        self.wake.next().await.is_some()
    }

    /// The next of those that are there.
    pub(super) fn next(&mut self) -> Option<Command> {
        lock(&self.queue).pop_front()
    }
}

fn push(queue: &mut VecDeque<Command>, command: Command) {
    match &command {
        Command::Publish(_, keep) => {
            let same = |other: &Command| matches!(other, Command::Publish(_, k) if k == keep);
            let most = match keep {
                Keep::Now => MOST_NOW,
                Keep::Until => MOST,
            };
            if queue.iter().filter(|other| same(other)).count() >= most {
                if let Some(oldest) = queue.iter().position(same) {
                    queue.remove(oldest);
                }
            }
        }
        Command::Subscribe { name, .. } => queue.retain(
            |other| !matches!(other, Command::Subscribe { name: waits, .. } if waits == name),
        ),
        Command::Unsubscribe(name) => queue.retain(|other| match other {
            Command::Subscribe { name: waits, .. } | Command::Unsubscribe(waits) => waits != name,
            Command::Publish(..) => true,
        }),
    }
    queue.push_back(command);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nostr::prelude::{EventBuilder, Filter, FinalizeEvent, Keys, Kind};

    #[test]
    fn what_waits_is_bounded() {
        let (sender, mut inbox) = channel();
        let keys = Keys::generate();
        let event = |n: usize| {
            EventBuilder::new(Kind::from_u16(7000), n.to_string())
                .finalize(&keys)
                .unwrap()
        };
        let events: Vec<_> = (0..MOST + 10).map(event).collect();
        for event in &events {
            for keep in [Keep::Until, Keep::Now] {
                sender.send(Command::Publish(Box::new(event.clone()), keep));
            }
            sender.send(Command::Unsubscribe("jobs".to_string()));
            sender.send(Command::Subscribe {
                name: "jobs".to_string(),
                filter: Box::new(Filter::new()),
                cursor: None,
                once: false,
            });
        }
        let (mut until, mut now, mut others) = (Vec::new(), 0, 0);
        while let Some(command) = inbox.next() {
            match command {
                Command::Publish(event, Keep::Until) => until.push(event.id),
                Command::Publish(_, Keep::Now) => now += 1,
                _ => others += 1,
            }
        }
        assert_eq!((until.len(), now, others), (MOST, MOST_NOW, 2));
        let newest: Vec<_> = events[10..].iter().map(|event| event.id).collect();
        assert_eq!(until, newest, "the oldest have made way");
    }
}
