//! A relay's state machine over a socket: one task for each relay.

use super::commands::{self, Inbox};
use super::limits::RelayLimits;
use super::machine::{Action, Budget, Keep, Machine, Outcome};
use super::{http, Incoming, NoConnection, Outgoing, Reach, Socket};
use crate::platform::{self, now, sleep, timeout, Boxed, Task};
use futures_channel::mpsc;
use futures_util::{select, FutureExt, SinkExt};
use nostr::prelude::{Event, EventId, Filter, Keys};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use url::Url;
use web_time::Instant;

const INFORMATION_TIMEOUT: Duration = Duration::from_secs(5);
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// A command to a driver. Among waiting commands, a subscription replaces an earlier one of its name, and the oldest publications of a sort
/// are dropped without a report, as in [`Machine::publish`].
#[derive(Debug)]
pub enum Command {
    /// Publish an event.
    Publish(Box<Event>, Keep),
    /// Ask for events.
    Subscribe {
        /// The subscription's name.
        name: String,
        /// The requested events.
        filter: Box<Filter>,
        /// The cursor from which to continue.
        cursor: Option<u64>,
        /// Whether it ends with what is stored.
        once: bool,
    },
    /// End a subscription.
    Unsubscribe(String),
}

/// A report of a driver.
#[derive(Debug)]
pub enum Report {
    /// The connection is open.
    Up,
    /// It is not, for this reason.
    Down(String),
    /// The limits that the relay publishes.
    Limits(RelayLimits),
    /// The relay's own time, in seconds since 1970, where it shows one.
    RelayClock(u64),
    /// An event of a subscription, unverified.
    Event(String, Box<Event>),
    /// A subscription has brought all that was stored.
    StoredEnd(String),
    /// A subscription has been read up to here.
    Cursor(String, u64),
    /// The outcome of a publication.
    Settled(EventId, Outcome),
}

/// A running driver. It ends when this is dropped.
pub struct Driver {
    commands: commands::Sender,
    task: Task,
}

impl Driver {
    /// Starts to connect to `url`. Reports come with that address, in the order in which things happened; a slow reader slows the
    /// relay down.
    pub fn start(
        url: &str,
        keys: impl Into<Arc<Keys>>,
        reach: Reach,
        reports: mpsc::Sender<(String, Report)>,
    ) -> Self {
        Self::with_budget(url, keys, reach, Budget::OWN, reports)
    }

    /// As [`Driver::start`], for a relay that may have us do more or less.
    pub fn with_budget(
        url: &str,
        keys: impl Into<Arc<Keys>>,
        reach: Reach,
        budget: Budget,
        reports: mpsc::Sender<(String, Report)>,
    ) -> Self {
        let (commands, inbox) = commands::channel();
        let machine = Machine::new(url.to_string(), keys, rand::random()).with_budget(budget);
        let task = platform::spawn(run(url.to_string(), machine, reach, inbox, reports));
        Self { commands, task }
    }

    /// Sends it a command. The driver takes commands faster than they come, unless the reports are not read; the number of waiting commands
    /// is bounded, see [`Command`].
    pub fn send(&self, command: Command) {
        self.commands.send(command);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Opening = Boxed<'static, Result<Socket, NoConnection>>;
type Asking = Boxed<'static, Information>;
/// A relay's information document, and its clock.
type Information = (Option<RelayLimits>, Option<u64>);

/// The event that ended the driver's wait.
enum Next {
    Command(bool),
    Heard(Result<Incoming, String>),
    Opened(Result<Socket, NoConnection>),
    Informed(Information),
    Time,
}

/// A machine with its clocks: one that only goes forward, and the date, which may be set.
struct Timed {
    machine: Machine,
    started: Instant,
}

impl Timed {
    /// The time for the machine, which knows the date then.
    fn now(&mut self) -> u64 {
        self.machine.set_date(now());
        self.started.elapsed().as_millis() as u64
    }
}

async fn run(
    url: String,
    machine: Machine,
    reach: Reach,
    mut commands: Inbox,
    mut reports: mpsc::Sender<(String, Report)>,
) {
    let mut timed = Timed {
        machine,
        started: Instant::now(),
    };
    let mut socket: Option<Socket> = None;
    let mut opening: Option<Opening> = None;
    let mut asking: Option<Asking> = Some(Box::pin(information(url.clone(), reach)));
    let now = timed.now();
    timed.machine.tick(now);
    loop {
        while let Some(action) = timed.machine.next_action() {
            let report = match action {
                Action::Connect => {
                    opening = Some(Box::pin(open(url.clone(), reach)));
                    continue;
                }
                Action::Send(text) => {
                    send(&mut timed, &mut socket, Outgoing::Text(text)).await;
                    continue;
                }
                Action::Ping => {
                    send(&mut timed, &mut socket, Outgoing::Ping).await;
                    continue;
                }
                Action::Close(reason) => {
                    socket = None;
                    opening = None;
                    Report::Down(reason.to_string())
                }
                Action::Deliver {
                    subscription,
                    event,
                } => Report::Event(subscription, event),
                Action::StoredEnd { subscription } => Report::StoredEnd(subscription),
                Action::Cursor { subscription, to } => Report::Cursor(subscription, to),
                Action::Settled { id, outcome } => Report::Settled(id, outcome),
            };
            if reports.send((url.clone(), report)).await.is_err() {
                return;
            }
        }
        let now = timed.now();
        let reads = timed.machine.reads_from() <= now;
        let mut until = timed.machine.deadline();
        if !reads {
            until = until.min(timed.machine.reads_from());
        }
        let wait = Duration::from_millis(until.saturating_sub(now).min(60_000));
        let next = select! {
            some = pin!(commands.wait().fuse()) => Next::Command(some),
            heard = pin!(next(&mut socket, reads).fuse()) => Next::Heard(heard),
            opened = pin!(ready(&mut opening).fuse()) => Next::Opened(opened),
            information = pin!(ready(&mut asking).fuse()) => Next::Informed(information),
            () = pin!(sleep(wait).fuse()) => Next::Time,
        };
        let now = timed.now();
        let machine = &mut timed.machine;
        let report = match next {
            Next::Command(false) => return,
            Next::Command(true) => {
                while let Some(command) = commands.next() {
                    obey(machine, command, now);
                }
                None
            }
            Next::Heard(Ok(Incoming::Text(text))) => {
                machine.receive(&text, now);
                None
            }
            Next::Heard(Ok(Incoming::Other)) => {
                machine.heard(now);
                None
            }
            Next::Heard(Err(reason)) => {
                lost(machine, &mut socket, now);
                Some(Report::Down(reason))
            }
            Next::Opened(Ok(opened)) => {
                socket = Some(opened);
                machine.opened(now);
                Some(Report::Up)
            }
            Next::Opened(Err(failure)) => {
                if failure.forever {
                    machine.unreachable(&failure.reason)
                } else {
                    machine.closed(now)
                }
                Some(Report::Down(failure.reason))
            }
            Next::Informed((limits, clock)) => {
                if let Some(clock) = clock.map(Report::RelayClock) {
                    if reports.send((url.clone(), clock)).await.is_err() {
                        return;
                    }
                }
                limits.map(|limits| {
                    machine.set_limits(limits.clone());
                    Report::Limits(limits)
                })
            }
            Next::Time => {
                machine.tick(now);
                None
            }
        };
        if let Some(report) = report {
            if reports.send((url.clone(), report)).await.is_err() {
                return;
            }
        }
    }
}

fn obey(machine: &mut Machine, command: Command, now: u64) {
    match command {
        Command::Publish(event, keep) => machine.publish(&event, keep, now),
        Command::Subscribe {
            name,
            filter,
            cursor,
            once,
        } => machine.subscribe(&name, *filter, cursor, once, now),
        Command::Unsubscribe(name) => machine.unsubscribe(&name),
    }
}

fn lost(machine: &mut Machine, socket: &mut Option<Socket>, now: u64) {
    *socket = None;
    if machine.is_up() {
        machine.closed(now);
    }
}

/// Sends a message if the connection is open. Without a connection the message is dropped; the machine issues it again once connected.
async fn send(timed: &mut Timed, socket: &mut Option<Socket>, message: Outgoing) {
    if let Some(open) = socket {
        if !matches!(
            timeout(SEND_TIMEOUT, open.send(message)).await,
            Some(Ok(()))
        ) {
            let now = timed.now();
            lost(&mut timed.machine, socket, now);
        }
    }
}

/// The next message; never, while nothing is open or is to be read.
async fn next(socket: &mut Option<Socket>, reads: bool) -> Result<Incoming, String> {
    match socket {
        Some(socket) if reads => socket.next().await,
        _ => std::future::pending().await,
    }
}

/// The future's result, once; never, if there is none.
async fn ready<T>(future: &mut Option<Boxed<'static, T>>) -> T {
    match future {
        None => std::future::pending().await,
        Some(running) => {
            let result = running.await;
            *future = None;
            result
        }
    }
}

async fn open(url: String, reach: Reach) -> Result<Socket, NoConnection> {
    Socket::open(&url, reach).await
}

/// The relay's information document, if it has one, and its clock, if it shows one.
async fn information(url: String, reach: Reach) -> Information {
    let http = url.replacen("ws", "http", 1);
    let Ok(url) = Url::parse(&http) else {
        return (None, None);
    };
    let accept = "application/nostr+json";
    let (bytes, date) = http::get_dated(&url, accept, reach, 64 * 1024, INFORMATION_TIMEOUT).await;
    let text = bytes.and_then(http::text);
    (text.ok().map(|text| RelayLimits::read(&text)), date)
}
