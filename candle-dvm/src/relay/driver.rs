//! A relay's state machine over a socket: one task for each relay.

use super::limits::RelayLimits;
use super::machine::{Action, Keep, Machine, Outcome};
use super::{http, Incoming, Outgoing, Reach, Socket};
use crate::platform::{self, now_ms, sleep, timeout, Boxed, Task};
use futures_channel::mpsc;
use futures_util::{select, FutureExt, SinkExt, StreamExt};
use nostr::prelude::{Event, EventId, Filter, Keys};
use std::pin::pin;
use std::time::Duration;
use url::Url;

const INFORMATION_TIMEOUT: Duration = Duration::from_secs(5);
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// What a driver is asked to do.
#[derive(Debug)]
pub enum Command {
    /// Publish an event.
    Publish(Box<Event>, Keep),
    /// Ask for events.
    Subscribe {
        /// The subscription's name.
        name: String,
        /// What is asked for.
        filter: Box<Filter>,
        /// Where it goes on.
        cursor: Option<u64>,
        /// Whether it ends with what is stored.
        once: bool,
    },
    /// End a subscription.
    Unsubscribe(String),
    /// Do not try to publish an event any more.
    Forget(EventId),
}

/// What a driver has to tell.
#[derive(Debug)]
pub enum Report {
    /// The connection is open.
    Up,
    /// It is not, for this reason.
    Down(String),
    /// What the relay says about itself.
    Limits(RelayLimits),
    /// The relay's own time, in seconds since 1970, where it shows one.
    RelayClock(u64),
    /// An event of a subscription, unverified.
    Event(String, Box<Event>),
    /// A subscription has brought all that was stored.
    StoredEnd(String),
    /// A subscription has been read up to here.
    Cursor(String, u64),
    /// What became of a publication.
    Settled(EventId, Outcome),
}

/// A running driver. It ends when this is dropped.
pub struct Driver {
    commands: mpsc::UnboundedSender<Command>,
    task: Task,
}

impl Driver {
    /// Starts to connect to `url`. Reports come with that address, in the order in which things happened; a slow reader slows the
    /// relay down.
    pub fn start(
        url: &str,
        keys: Keys,
        reach: Reach,
        reports: mpsc::Sender<(String, Report)>,
    ) -> Self {
        let (commands, inbox) = mpsc::unbounded();
        let task = platform::spawn(run(url.to_string(), keys, reach, inbox, reports));
        Self { commands, task }
    }

    /// Asks it to do something.
    pub fn send(&self, command: Command) {
        // The task ends only with us.
        let _ = self.commands.unbounded_send(command);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Opening = Boxed<'static, Result<Socket, String>>;
type Asking = Boxed<'static, Information>;
/// A relay's information document, and its clock.
type Information = (Option<RelayLimits>, Option<u64>);

/// What the driver has waited for.
enum Next {
    Command(Option<Command>),
    Heard(Result<Incoming, String>),
    Opened(Result<Socket, String>),
    Informed(Information),
    Time,
}

async fn run(
    url: String,
    keys: Keys,
    reach: Reach,
    mut commands: mpsc::UnboundedReceiver<Command>,
    mut reports: mpsc::Sender<(String, Report)>,
) {
    let mut machine = Machine::new(url.clone(), keys, rand::random());
    let mut socket: Option<Socket> = None;
    let mut opening: Option<Opening> = None;
    let mut asking: Option<Asking> = Some(Box::pin(information(url.clone(), reach)));
    machine.tick(now_ms());
    loop {
        while let Some(action) = machine.next_action() {
            let report = match action {
                Action::Connect => {
                    opening = Some(Box::pin(open(url.clone(), reach)));
                    continue;
                }
                Action::Send(text) => {
                    send(&mut machine, &mut socket, Outgoing::Text(text)).await;
                    continue;
                }
                Action::Ping => {
                    send(&mut machine, &mut socket, Outgoing::Ping).await;
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
        let wait = Duration::from_millis(machine.deadline().saturating_sub(now_ms()).min(60_000));
        let next = select! {
            command = commands.next() => Next::Command(command),
            heard = pin!(next(&mut socket).fuse()) => Next::Heard(heard),
            opened = pin!(ready(&mut opening).fuse()) => Next::Opened(opened),
            information = pin!(ready(&mut asking).fuse()) => Next::Informed(information),
            () = pin!(sleep(wait).fuse()) => Next::Time,
        };
        let report = match next {
            Next::Command(None) => return,
            Next::Command(Some(command)) => {
                obey(&mut machine, command);
                None
            }
            Next::Heard(Ok(Incoming::Text(text))) => {
                machine.receive(&text, now_ms());
                None
            }
            Next::Heard(Ok(Incoming::Other)) => {
                machine.heard(now_ms());
                None
            }
            Next::Heard(Err(reason)) => {
                lost(&mut machine, &mut socket);
                Some(Report::Down(reason))
            }
            Next::Opened(Ok(opened)) => {
                socket = Some(opened);
                machine.opened(now_ms());
                Some(Report::Up)
            }
            Next::Opened(Err(reason)) => {
                machine.closed(now_ms());
                Some(Report::Down(reason))
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
                machine.tick(now_ms());
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

fn obey(machine: &mut Machine, command: Command) {
    let now = now_ms();
    match command {
        Command::Publish(event, keep) => machine.publish(&event, keep, now),
        Command::Subscribe {
            name,
            filter,
            cursor,
            once,
        } => machine.subscribe(&name, *filter, cursor, once, now),
        Command::Unsubscribe(name) => machine.unsubscribe(&name),
        Command::Forget(id) => machine.forget(id),
    }
}

fn lost(machine: &mut Machine, socket: &mut Option<Socket>) {
    *socket = None;
    if machine.is_up() {
        machine.closed(now_ms());
    }
}

/// Sends, if something is open: what is to be sent while nothing is, is asked for again when it is.
async fn send(machine: &mut Machine, socket: &mut Option<Socket>, message: Outgoing) {
    if let Some(open) = socket {
        if !matches!(
            timeout(SEND_TIMEOUT, open.send(message)).await,
            Some(Ok(()))
        ) {
            lost(machine, socket);
        }
    }
}

/// The next message; never, while nothing is open.
async fn next(socket: &mut Option<Socket>) -> Result<Incoming, String> {
    match socket {
        None => std::future::pending().await,
        Some(socket) => socket.next().await,
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

async fn open(url: String, reach: Reach) -> Result<Socket, String> {
    Socket::open(&url, reach).await
}

/// The relay's information document, if it has one, and its clock, if it shows one.
async fn information(url: String, reach: Reach) -> Information {
    let http = url.replacen("ws", "http", 1);
    let Ok(url) = Url::parse(&http) else {
        return (None, None);
    };
    let accept = "application/nostr+json";
    let (text, date) = http::get_dated(&url, accept, reach, 64 * 1024, INFORMATION_TIMEOUT).await;
    (text.ok().map(|text| RelayLimits::read(&text)), date)
}
