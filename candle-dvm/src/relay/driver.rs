//! A relay's state machine over tokio and tungstenite: one task for each relay.

use super::connect::{connect, Io, Reach};
use super::limits::RelayLimits;
use super::machine::{Action, Keep, Machine, Outcome, LARGEST_MESSAGE};
use futures_util::{SinkExt, StreamExt};
use nostr::prelude::{Event, EventId, Filter, Keys};
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::WebSocketStream;
use url::Url;

/// A message is cut off here, and the connection with it. Up to this size events can be read and dropped, so that a large one that a
/// relay has stored does not keep us from what is behind it.
const LARGEST_FRAME: usize = 8 * LARGEST_MESSAGE;
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
    task: tokio::task::AbortHandle,
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
        let (commands, inbox) = mpsc::unbounded_channel();
        let task = tokio::spawn(run(url.to_string(), keys, reach, inbox, reports));
        Self {
            commands,
            task: task.abort_handle(),
        }
    }

    /// Asks it to do something.
    pub fn send(&self, command: Command) {
        // The task ends only with us.
        let _ = self.commands.send(command);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

type Socket = WebSocketStream<Box<dyn Io>>;
type Opening = Pin<Box<dyn Future<Output = Result<Socket, String>> + Send>>;
type Asking = Pin<Box<dyn Future<Output = Option<RelayLimits>> + Send>>;

async fn run(
    url: String,
    keys: Keys,
    reach: Reach,
    mut commands: mpsc::UnboundedReceiver<Command>,
    reports: mpsc::Sender<(String, Report)>,
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
                    if !send(&mut socket, Message::text(text)).await {
                        lost(&mut machine, &mut socket);
                    }
                    continue;
                }
                Action::Ping => {
                    if !send(&mut socket, Message::Ping(Default::default())).await {
                        lost(&mut machine, &mut socket);
                    }
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
        let report = tokio::select! {
            command = commands.recv() => {
                match command {
                    None => return,
                    Some(command) => obey(&mut machine, command),
                }
                None
            }
            message = next(&mut socket) => match message {
                Ok(Message::Text(text)) => {
                    machine.receive(&text, now_ms());
                    None
                }
                Ok(_) => {
                    machine.heard(now_ms());
                    None
                }
                Err(reason) => {
                    lost(&mut machine, &mut socket);
                    Some(Report::Down(reason))
                }
            },
            opened = ready(&mut opening) => match opened {
                Ok(opened) => {
                    socket = Some(opened);
                    machine.opened(now_ms());
                    Some(Report::Up)
                }
                Err(reason) => {
                    machine.closed(now_ms());
                    Some(Report::Down(reason))
                }
            },
            limits = ready(&mut asking) => limits.map(|limits| {
                machine.set_limits(limits.clone());
                Report::Limits(limits)
            }),
            () = tokio::time::sleep(wait) => {
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
    }
}

fn lost(machine: &mut Machine, socket: &mut Option<Socket>) {
    *socket = None;
    if machine.is_up() {
        machine.closed(now_ms());
    }
}

async fn send(socket: &mut Option<Socket>, message: Message) -> bool {
    match socket {
        // What is to be sent while nothing is open is asked for again when it is.
        None => true,
        Some(socket) => matches!(
            tokio::time::timeout(SEND_TIMEOUT, socket.send(message)).await,
            Ok(Ok(()))
        ),
    }
}

/// The next message; never, while nothing is open.
async fn next(socket: &mut Option<Socket>) -> Result<Message, String> {
    match socket {
        None => std::future::pending().await,
        Some(socket) => match socket.next().await {
            Some(Ok(Message::Close(_))) | None => {
                Err("the relay closed the connection".to_string())
            }
            Some(message) => message.map_err(|err| err.to_string()),
        },
    }
}

/// The future's result, once; never, if there is none.
async fn ready<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
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
    let parsed = Url::parse(&url).map_err(|err| err.to_string())?;
    let stream = connect(&parsed, reach).await?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(LARGEST_FRAME))
        .max_frame_size(Some(LARGEST_FRAME));
    let opened =
        tokio_tungstenite::client_async_with_config(url.as_str(), stream, Some(config)).await;
    opened
        .map(|(socket, _)| socket)
        .map_err(|err| err.to_string())
}

/// The relay's information document, if it has one.
async fn information(url: String, reach: Reach) -> Option<RelayLimits> {
    let http = url.replacen("ws", "http", 1);
    let url = Url::parse(&http).ok()?;
    let accept = "application/nostr+json";
    let text = super::http::get(&url, accept, reach, 64 * 1024, INFORMATION_TIMEOUT).await;
    text.ok().map(|text| RelayLimits::read(&text))
}
