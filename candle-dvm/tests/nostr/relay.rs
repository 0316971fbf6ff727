//! A relay on 127.0.0.1 that stores and forwards, and misbehaves when asked to.

use super::wait::wait_until;
use futures_util::{SinkExt, StreamExt};
use nostr::prelude::{
    ClientMessage, Event, Filter, MatchEventOptions, RelayMessage, SubscriptionId,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::broadcast;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::WebSocketStream;

/// Additional behaviour of a relay.
#[derive(Clone, Default)]
pub struct Behaviour {
    /// Nothing is taken or given before an answer to an AUTH challenge.
    pub auth: bool,
    /// Texts that each client gets with the answer to its first request.
    pub noise: Vec<String>,
    /// The noise does not end as long as the connection lasts.
    pub endless: bool,
    /// Bytes that are put on the wire after the noise, as they are; then the connection is closed.
    pub garbage: Option<Vec<u8>>,
    /// At most this many stored events for a request.
    pub max_limit: Option<usize>,
    /// It never says that it has sent all that it stored.
    pub endless_search: bool,
    /// Its information document.
    pub information: Option<String>,
    /// The events that it refuses with a NOTICE.
    pub notices: Notices,
}

/// Events to which a relay says NOTICE, which names none.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum Notices {
    #[default]
    Never,
    /// Those with a tag value of more than 1,024 characters, as @nostr-relay/validator does.
    LongTags,
    /// All events.
    Always,
    /// Refuses subscriptions too, none of which ends.
    Everything,
}

impl Notices {
    fn concern(self, event: &Event) -> bool {
        let long = |value: &String| value.chars().count() > 1024;
        match self {
            Self::Never => false,
            Self::LongTags => event.tags.iter().any(|tag| tag.as_slice().iter().any(long)),
            Self::Always | Self::Everything => true,
        }
    }
}

struct State {
    events: Mutex<Vec<Event>>,
    asked: Mutex<Vec<Filter>>,
    news: broadcast::Sender<Event>,
    behaviour: Behaviour,
    connections: AtomicU32,
    deaf: AtomicBool,
    requests: Mutex<HashMap<String, u32>>,
    refused: AtomicU32,
    noise_bytes: AtomicU64,
}

/// A running relay; it ends when this is dropped.
pub struct TestRelay {
    pub url: String,
    state: Arc<State>,
    runtime: Mutex<Option<Runtime>>,
}

impl TestRelay {
    pub fn start() -> Self {
        Self::with(Behaviour::default())
    }

    pub fn with(behaviour: Behaviour) -> Self {
        let state = Arc::new(State {
            events: Mutex::new(Vec::new()),
            asked: Mutex::new(Vec::new()),
            news: broadcast::channel(4096).0,
            behaviour,
            connections: AtomicU32::new(0),
            deaf: AtomicBool::new(false),
            requests: Mutex::default(),
            refused: AtomicU32::new(0),
            noise_bytes: AtomicU64::new(0),
        });
        let (runtime, address) = listen("127.0.0.1:0", &state).unwrap();
        Self {
            url: format!("ws://{address}"),
            state,
            runtime: Mutex::new(Some(runtime)),
        }
    }

    /// Ends all connections, and takes none any more.
    pub fn stop(&self) {
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            runtime.shutdown_background();
        }
    }

    /// Goes on after [`TestRelay::stop`], at the same address and with the same events.
    pub fn resume(&self) {
        let address = self.url.trim_start_matches("ws://");
        let end = Instant::now() + Duration::from_secs(10);
        // What listened before may take a moment to end.
        let runtime = loop {
            match listen(address, &self.state) {
                Ok((runtime, _)) => break runtime,
                Err(err) => assert!(Instant::now() < end, "{address}: {err}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        *self.runtime.lock().unwrap() = Some(runtime);
    }

    /// Everything that was published here, each id once.
    pub fn events(&self) -> Vec<Event> {
        self.events_from(0)
    }

    /// The same without the first ones, this many.
    pub fn events_from(&self, first: usize) -> Vec<Event> {
        self.state.events.lock().unwrap()[first..].to_vec()
    }

    /// All requested filters.
    pub fn asked(&self) -> Vec<Filter> {
        self.state.asked.lock().unwrap().clone()
    }

    pub fn of_kind(&self, kind: u16) -> Vec<Event> {
        let mut events = self.events();
        events.retain(|event| event.kind.as_u16() == kind);
        events
    }

    /// Stores an event and forwards it, as if a client had published it.
    pub fn publish(&self, event: &Event) {
        store(&self.state, event.clone());
    }

    pub fn connections(&self) -> u32 {
        self.state.connections.load(SeqCst)
    }

    /// Number of requests for the subscription `name`.
    pub fn requests(&self, name: &str) -> u32 {
        let requests = self.state.requests.lock().unwrap();
        requests.get(name).copied().unwrap_or(0)
    }

    /// Number of events that it refused with a NOTICE.
    pub fn refused(&self) -> u32 {
        self.state.refused.load(SeqCst)
    }

    /// Number of bytes of its noise that clients have read.
    pub fn noise_bytes(&self) -> u64 {
        self.state.noise_bytes.load(SeqCst)
    }

    /// Whether events are answered and stored.
    pub fn set_deaf(&self, deaf: bool) {
        self.state.deaf.store(deaf, SeqCst);
    }

    /// Waits for as many events of a kind.
    #[track_caller]
    pub fn wait_for(&self, kind: u16, count: usize) -> Vec<Event> {
        let found = || self.of_kind(kind).len();
        let problem = || {
            let all = self.events().len();
            format!("{} of {count} events of kind {kind}, {all} in all", found())
        };
        wait_until(problem, || found() >= count);
        self.of_kind(kind)
    }
}

impl Drop for TestRelay {
    fn drop(&mut self) {
        self.stop();
    }
}

fn listen(address: &str, state: &Arc<State>) -> std::io::Result<(Runtime, SocketAddr)> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind(address))?;
    let address = listener.local_addr()?;
    let shared = state.clone();
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(client(stream, shared.clone()));
        }
    });
    Ok((runtime, address))
}

/// `false` if it was there.
fn store(state: &State, event: Event) -> bool {
    let mut events = state.events.lock().unwrap();
    if events.iter().any(|other| other.id == event.id) {
        return false;
    }
    events.push(event.clone());
    // Nobody may be listening.
    let _ = state.news.send(event);
    true
}

fn fits(filters: &[Filter], event: &Event) -> bool {
    let options = MatchEventOptions::default();
    filters
        .iter()
        .any(|filter| filter.match_event(event, options))
}

/// `false` if the connection has ended.
async fn make_noise(socket: &mut WebSocketStream<TcpStream>, state: &State) -> bool {
    loop {
        for text in &state.behaviour.noise {
            if socket.send(Message::text(text.clone())).await.is_err() {
                return false;
            }
            state.noise_bytes.fetch_add(text.len() as u64, SeqCst);
        }
        if !state.behaviour.endless || state.behaviour.noise.is_empty() {
            return true;
        }
    }
}

/// Answers to a question for the information document. `false` if it was none.
async fn informed(stream: &mut TcpStream, state: &State) -> bool {
    use tokio::io::AsyncWriteExt;
    let mut head = [0; 2048];
    let asks = loop {
        let Ok(count) = stream.peek(&mut head).await else {
            return true;
        };
        let text = String::from_utf8_lossy(&head[..count]).into_owned();
        if count == 0 || count == head.len() || text.contains("\r\n\r\n") {
            break text.contains("application/nostr+json");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    if asks {
        let text = state.behaviour.information.clone().unwrap_or_default();
        let length = text.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}");
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
    asks
}

async fn client(mut stream: TcpStream, state: Arc<State>) {
    if informed(&mut stream, &state).await {
        return;
    }
    state.connections.fetch_add(1, SeqCst);
    let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else {
        return;
    };
    let mut news = state.news.subscribe();
    let mut subscriptions: HashMap<SubscriptionId, Vec<Filter>> = HashMap::new();
    let mut known = !state.behaviour.auth;
    let mut noisy = true;
    if state.behaviour.auth {
        let challenge = RelayMessage::auth("prove it").as_json();
        let _ = socket.send(Message::text(challenge)).await;
    }
    loop {
        let mut replies = Vec::new();
        tokio::select! {
            event = news.recv() => {
                let Ok(event) = event else { return };
                for (name, filters) in &subscriptions {
                    if fits(filters, &event) {
                        replies.push(RelayMessage::event(name.clone(), event.clone()).as_json());
                    }
                }
            }
            message = socket.next() => {
                let text = match message {
                    Some(Ok(Message::Text(text))) => text,
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    _ => return,
                };
                match ClientMessage::from_json(text.as_bytes()).unwrap() {
                    ClientMessage::Auth(event) => {
                        known = event.verify().is_ok() && event.kind.as_u16() == 22242;
                        replies.push(RelayMessage::ok(event.id, known, "").as_json());
                    }
                    ClientMessage::Event(event) => {
                        if state.deaf.load(SeqCst) {
                            continue;
                        }
                        if state.behaviour.notices.concern(&event) {
                            state.refused.fetch_add(1, SeqCst);
                            let notice = RelayMessage::notice("ERROR: invalid event").as_json();
                            let _ = socket.send(Message::text(notice)).await;
                            continue;
                        }
                        let (taken, why) = if !known {
                            (false, "auth-required: who are you")
                        } else if store(&state, event.clone().into_owned()) {
                            (true, "")
                        } else {
                            (true, "duplicate: have it")
                        };
                        replies.push(RelayMessage::ok(event.id, taken, why).as_json());
                    }
                    ClientMessage::Req { subscription_id, filters } => {
                        let name = subscription_id.into_owned();
                        *state.requests.lock().unwrap().entry(name.to_string()).or_default() += 1;
                        if state.behaviour.notices == Notices::Everything {
                            replies.push(RelayMessage::notice("ERROR: no").as_json());
                        } else if !known {
                            let closed = RelayMessage::closed(name, "auth-required: who are you");
                            replies.push(closed.as_json());
                        } else {
                            let filters: Vec<Filter> =
                                filters.into_iter().map(|filter| filter.into_owned()).collect();
                            let mut stored = state.events.lock().unwrap().clone();
                            stored.retain(|event| fits(&filters, event));
                            // As real relays do: the newest first, and no more than asked for.
                            stored.sort_by_key(|event| std::cmp::Reverse(event.created_at));
                            let asked = filters.iter().filter_map(|filter| filter.limit).max();
                            let most = asked.into_iter().chain(state.behaviour.max_limit).min();
                            stored.truncate(most.unwrap_or(usize::MAX));
                            for event in stored {
                                replies.push(RelayMessage::event(name.clone(), event).as_json());
                            }
                            if !state.behaviour.endless_search {
                                replies.push(RelayMessage::eose(name.clone()).as_json());
                            }
                            state.asked.lock().unwrap().extend(filters.clone());
                            subscriptions.insert(name, filters);
                        }
                        if std::mem::take(&mut noisy) && !make_noise(&mut socket, &state).await {
                            return;
                        }
                    }
                    ClientMessage::Close(name) => {
                        subscriptions.remove(name.as_ref());
                    }
                    _ => {}
                }
            }
        }
        for reply in replies {
            if socket.send(Message::text(reply)).await.is_err() {
                return;
            }
        }
        if let (false, Some(garbage)) = (noisy, &state.behaviour.garbage) {
            use tokio::io::AsyncWriteExt;
            let _ = socket.get_mut().write_all(garbage).await;
            let _ = socket.get_mut().shutdown().await;
            return;
        }
    }
}
