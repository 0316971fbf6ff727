//! Ranks as processes, which meet over TCP.
//!
//! The wire format: rank 0 listens; the others connect and send `MAGIC`, their rank and the number of ranks. For a call, each of them sends
//! a frame: a kind, a length, the call as text, and the tensor's little-endian bytes. Rank 0 replies with the result's bytes, or with the
//! reason for having no result. No length from the wire is trusted: the tensors' lengths follow from the call, and texts have a limit.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::call::{to_host, Call, Op};
use super::{Communicator, DEFAULT_TIMEOUT};
use crate::{bail, Context, Device, Error, Result, Tensor};

const MAGIC: [u8; 8] = *b"candleR1";

/// Maximum length of a frame's text, in bytes.
const MAX_TEXT: usize = 1 << 14;

/// Delay between attempts to connect.
const RETRY: Duration = Duration::from_millis(20);

/// Time limit for the handshake of a new connection.
const HELLO: Duration = Duration::from_secs(2);

/// A frame with a tensor or a result.
const DATA: u8 = 0;
/// A frame with the reason why the group ends.
const END: u8 = 1;

/// One rank of a group whose ranks are processes, on one machine or several.
///
/// All tensors go over TCP to rank 0, which computes the results and sends them back: correct on any machine and for any device, and no
/// faster than that path. There is no encryption, and anyone who reaches the address can join as a rank: use it on one machine or in a
/// trusted network. In a group of one rank no connection is opened, and every call returns its tensor.
#[derive(Debug)]
pub struct ProcessGroup {
    rank: usize,
    world: usize,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// On rank 0, the streams of ranks 1 and up; on any other rank, the stream to rank 0.
    streams: Vec<TcpStream>,
    ended: Option<String>,
}

impl ProcessGroup {
    /// Joins the group of `world_size` ranks at `address`, such as `127.0.0.1:29500`, where rank 0 listens. Returns when all ranks have
    /// joined, in any order.
    ///
    /// # Errors
    /// If the group has no rank `rank`, the address cannot be used, or not all ranks have joined within the time limit.
    pub fn connect(address: &str, rank: usize, world_size: usize) -> Result<Self> {
        Self::connect_with_timeout(address, rank, world_size, DEFAULT_TIMEOUT)
    }

    /// Like [`connect`](Self::connect), with a time limit for joining and for each wait for another rank.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with_timeout(
        address: &str,
        rank: usize,
        world_size: usize,
        timeout: Duration,
    ) -> Result<Self> {
        if rank >= world_size {
            bail!("rank {rank} of {world_size}, ranks are counted from 0")
        }
        if timeout.is_zero() {
            bail!("rank {rank}: the timeout is 0; it must be positive")
        }
        let streams = match (world_size, rank) {
            (1, _) => Ok(Vec::new()),
            (_, 0) => accept(address, world_size, timeout),
            _ => join(address, rank, world_size, timeout).map(|stream| vec![stream]),
        };
        let streams = streams
            .with_context(|| format!("rank {rank} of {world_size} at {address}"))?
            .into_iter()
            .map(|stream| prepared(stream, timeout))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            rank,
            world: world_size,
            timeout,
            state: Mutex::new(State {
                streams,
                ended: None,
            }),
        })
    }

    /// Time limit of a wait for another rank.
    #[cfg(feature = "cuda")]
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn call(&self, op: Op, xs: &Tensor) -> Result<Tensor> {
        let call = Call::new(op, xs, self.world);
        if self.world == 1 {
            return call.and_then(|_| xs.contiguous());
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let rank = self.rank;
        if let Some(reason) = &state.ended {
            bail!("rank {rank}: the group has ended: {reason}")
        }
        let own = |err| format!("rank {rank} failed: {}", super::reason(&err));
        let result = call
            .and_then(|call| Ok((to_host(xs)?, call)))
            .map_err(own)
            .and_then(|(mine, call)| {
                let result = match rank {
                    0 => self.serve(&call, mine, &mut state.streams),
                    _ => self.ask(&call, &mine, &mut state.streams),
                };
                result.map_err(|err| super::reason(&err))
            })
            .and_then(|result| result.to_device(xs.device()).map_err(own));
        result.map_err(|reason| {
            state.end(&reason);
            Error::Msg(format!("rank {rank}: the group has ended: {reason}")).bt()
        })
    }

    /// Rank 0's part of a call.
    fn serve(&self, call: &Call, mine: Tensor, streams: &mut [TcpStream]) -> Result<Tensor> {
        let mut parts = vec![mine];
        for (i, stream) in streams.iter_mut().enumerate() {
            let rank = i + 1;
            let text = receive_head(stream).map_err(|err| self.lost(rank, err))?;
            let theirs = match text {
                Ok(text) => text,
                Err(reason) => bail!("{reason}"),
            };
            if theirs != call.to_string() {
                bail!("ranks disagree: rank 0 calls {call}, rank {rank} calls {theirs}")
            }
            parts.push(if call.sends(rank) {
                let part = receive_tensor(stream, call, &call.dims);
                part.map_err(|err| self.lost(rank, err))?
            } else {
                // A placeholder that the result does not depend on.
                parts[0].clone()
            });
        }
        let result = call.result(&parts)?;
        let bytes = bytes(&result)?;
        for (i, stream) in streams.iter_mut().enumerate() {
            let sent = send(stream, DATA, "", &bytes);
            sent.map_err(|err| self.lost(i + 1, Error::from(err)))?;
        }
        Ok(result)
    }

    /// Another rank's part of a call: sends its tensor and receives the result.
    fn ask(&self, call: &Call, mine: &Tensor, streams: &mut [TcpStream]) -> Result<Tensor> {
        let Some(stream) = streams.first_mut() else {
            bail!("rank {} has no connection to rank 0", self.rank)
        };
        let data = if call.sends(self.rank) {
            bytes(mine)?
        } else {
            Vec::new()
        };
        // A rank 0 that has ended the group may have sent the reason and closed the connection: the reason takes precedence.
        let sent = send(stream, DATA, &call.to_string(), &data);
        match (receive_head(stream), sent) {
            (Ok(Err(reason)), _) => bail!("{reason}"),
            (_, Err(err)) => Err(self.lost(0, Error::from(err))),
            (Err(err), _) => Err(self.lost(0, err)),
            (Ok(Ok(_)), Ok(())) => {
                let tensor = receive_tensor(stream, call, &call.result_dims(self.world));
                tensor.map_err(|err| self.lost(0, err))
            }
        }
    }

    /// The error for a failed stream to `rank`.
    fn lost(&self, rank: usize, err: Error) -> Error {
        let text = match &err {
            Error::Io(io) => match io.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    format!("no message from rank {rank} for {:?}", self.timeout)
                }
                ErrorKind::UnexpectedEof
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe => format!("rank {rank} has left"),
                _ => format!("rank {rank}: {io}"),
            },
            other => format!("rank {rank}: {}", super::reason(other)),
        };
        Error::Msg(text)
    }
}

impl Call {
    /// Whether rank `rank`'s tensor is needed.
    fn sends(&self, rank: usize) -> bool {
        match self.op {
            Op::Broadcast { root } => root == rank,
            _ => true,
        }
    }
}

impl State {
    /// Sends the reason to the other ranks that can still be reached.
    fn end(&mut self, reason: &str) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(reason.to_string());
        let text: String = reason.chars().take(MAX_TEXT / 4).collect();
        for stream in &mut self.streams {
            let _ = send(stream, END, &text, &[]);
        }
    }
}

impl Communicator for ProcessGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world
    }

    fn all_reduce(&self, xs: &Tensor) -> Result<Tensor> {
        self.call(Op::AllReduce, xs)
    }

    fn all_gather(&self, xs: &Tensor, dim: usize) -> Result<Tensor> {
        self.call(Op::AllGather { dim }, xs)
    }

    fn broadcast(&self, xs: &Tensor, root: usize) -> Result<Tensor> {
        self.call(Op::Broadcast { root }, xs)
    }

    fn abort(&self, reason: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.end(&format!("rank {} failed: {reason}", self.rank));
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let (true, Ok(mut state)) = (std::thread::panicking(), self.state.lock()) {
            state.end(&format!("rank {} panicked", self.rank));
        }
    }
}

/// Rank 0: the streams of the others, in order.
fn accept(address: &str, world: usize, timeout: Duration) -> Result<Vec<TcpStream>> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    let mut streams: Vec<Option<TcpStream>> = (1..world).map(|_| None).collect();
    while streams.iter().any(Option::is_none) {
        let Some(left) = timeout.checked_sub(start.elapsed()) else {
            let absent = streams.iter().enumerate().filter(|(_, s)| s.is_none());
            let absent: Vec<usize> = absent.map(|(i, _)| i + 1).collect();
            bail!("ranks {absent:?} did not connect within {timeout:?}")
        };
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(err) if err.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(RETRY.min(left));
                continue;
            }
            Err(err) => return Err(err.into()),
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(left.clamp(RETRY, HELLO)))?;
        let mut hello = [0; 16];
        // An unrelated connection does not end the group.
        if stream.read_exact(&mut hello).is_err() || hello[..8] != MAGIC {
            continue;
        }
        let (rank, theirs) = (number(&hello[8..12]), number(&hello[12..]));
        if theirs != world {
            bail!("rank {rank} expects a group of {theirs} ranks, rank 0 one of {world}")
        }
        match rank.checked_sub(1).and_then(|i| streams.get_mut(i)) {
            Some(place @ None) => *place = Some(stream),
            Some(Some(_)) => bail!("two processes claim to be rank {rank}"),
            None => bail!("a process claims to be rank {rank} of {world}"),
        }
    }
    let mut streams: Vec<TcpStream> = streams.into_iter().flatten().collect();
    for stream in &mut streams {
        stream.write_all(&MAGIC)?;
    }
    Ok(streams)
}

/// Another rank: the stream to rank 0, once all ranks have joined.
fn join(address: &str, rank: usize, world: usize, timeout: Duration) -> Result<TcpStream> {
    let start = Instant::now();
    let mut last = None;
    while let Some(left) = timeout.checked_sub(start.elapsed()) {
        let left = left.max(RETRY);
        let connected = address.to_socket_addrs()?.find_map(|address| {
            let connected = TcpStream::connect_timeout(&address, left);
            connected.map_err(|err| last = Some(err)).ok()
        });
        let Some(mut stream) = connected else {
            std::thread::sleep(RETRY);
            continue;
        };
        stream.set_read_timeout(Some(left))?;
        let mut hello = MAGIC.to_vec();
        hello.extend_from_slice(&(rank as u32).to_le_bytes());
        hello.extend_from_slice(&(world as u32).to_le_bytes());
        stream.write_all(&hello)?;
        let mut answer = [0; 8];
        return match stream.read_exact(&mut answer) {
            Ok(()) if answer == MAGIC => Ok(stream),
            Ok(()) => bail!("the peer is not rank 0"),
            Err(err) => bail!("rank 0 did not gather all ranks: {err}"),
        };
    }
    match last {
        Some(err) => bail!("rank 0 was not reached within {timeout:?}: {err}"),
        None => bail!("rank 0 was not reached within {timeout:?}"),
    }
}

fn prepared(stream: TcpStream, timeout: Duration) -> Result<TcpStream> {
    // Most tensors are small, and a rank waits for each.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    Ok(stream)
}

fn number(bytes: &[u8]) -> usize {
    let mut le = [0; 4];
    le.copy_from_slice(bytes);
    u32::from_le_bytes(le) as usize
}

/// Sends a frame. The length of its data follows from its text.
fn send(stream: &mut TcpStream, kind: u8, text: &str, data: &[u8]) -> std::io::Result<()> {
    let mut head = vec![kind];
    head.extend_from_slice(&(text.len() as u32).to_le_bytes());
    head.extend_from_slice(text.as_bytes());
    stream.write_all(&head)?;
    stream.write_all(data)
}

/// The text of a frame with data, or the reason why the group ends.
fn receive_head(stream: &mut TcpStream) -> Result<std::result::Result<String, String>> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let len = number(&head[1..]);
    if len > MAX_TEXT {
        bail!("a message of {len} bytes; the maximum is {MAX_TEXT}")
    }
    let mut text = vec![0; len];
    stream.read_exact(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    match head[0] {
        DATA => Ok(Ok(text)),
        END => Ok(Err(text)),
        other => bail!("a message of unknown kind {other}"),
    }
}

fn receive_tensor(stream: &mut TcpStream, call: &Call, dims: &[usize]) -> Result<Tensor> {
    let len = dims.iter().product::<usize>() * call.dtype.size_in_bytes();
    let mut data = vec![0; len];
    stream.read_exact(&mut data)?;
    Tensor::from_raw_buffer(&data, call.dtype, dims, &Device::Cpu)
}

fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    tensor.write_bytes(&mut bytes)?;
    Ok(bytes)
}
