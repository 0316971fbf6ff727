//! Streams. Work is done immediately, so a stream only stores its capture.

use crate::device::current_device;
use crate::graph::{self, Node};
use crate::memory;
use crate::status::*;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::Instant;

pub struct Capture {
    pub id: u64,
    /// The streams with restricted calls: those of all threads, of the thread that began it, or none.
    mode: u32,
    by: ThreadId,
    origin: usize,
    pub nodes: Vec<Node>,
    invalid: bool,
}

#[derive(Clone, Copy)]
pub struct Stream {
    pub device: usize,
    pub capture: Option<u64>,
}

#[derive(Clone, Copy)]
pub struct Event {
    pub timed: bool,
    pub at: Option<Instant>,
    pub capture: Option<u64>,
}

#[derive(Default)]
pub struct Streams {
    streams: HashMap<usize, Stream>,
    pub events: HashMap<usize, Event>,
    pub captures: HashMap<u64, Capture>,
    last_handle: usize,
}

pub fn all() -> MutexGuard<'static, Streams> {
    static ALL: LazyLock<Mutex<Streams>> = LazyLock::new(Mutex::default);
    ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A new, unique handle.
pub fn new_handle(streams: &mut Streams) -> usize {
    streams.last_handle += 64;
    0x10_0000 + streams.last_handle
}

/// 0, 1 and 2 are the default streams of the current device.
pub fn get(streams: &Streams, handle: usize) -> Result<Stream, Status> {
    match handle {
        0..=2 => Ok(Stream {
            device: current_device()?,
            capture: None,
        }),
        _ => streams
            .streams
            .get(&handle)
            .copied()
            .ok_or(ERROR_INVALID_HANDLE),
    }
}

pub fn device(handle: usize) -> Result<usize, Status> {
    get(&all(), handle).map(|stream| stream.device)
}

/// The capture of a stream.
pub fn capture(handle: usize) -> Result<Option<u64>, Status> {
    get(&all(), handle).map(|stream| stream.capture)
}

/// Executes the node, or records it if the stream is captured.
pub fn submit(handle: usize, node: Node) -> Result<(), Status> {
    let mut streams = all();
    match get(&streams, handle)?.capture {
        None => {
            drop(streams);
            node.run()
        }
        Some(id) => {
            let capture = streams
                .captures
                .get_mut(&id)
                .ok_or(ERROR_STREAM_CAPTURE_INVALIDATED)?;
            if capture.invalid {
                return Err(ERROR_STREAM_CAPTURE_INVALIDATED);
            }
            capture.nodes.push(node);
            Ok(())
        }
    }
}

/// For calls that a capture forbids: invalidates the captures that they would disturb, like the driver.
pub fn forbidden_in_capture() -> Result<(), Status> {
    let mut streams = all();
    let here = std::thread::current().id();
    let mut result = Ok(());
    for capture in streams.captures.values_mut() {
        if capture.mode == 0 || (capture.mode == 1 && capture.by == here) {
            capture.invalid = true;
            result = Err(ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    result
}

fn create(to: *mut usize) -> Result<(), Status> {
    let device = current_device()?;
    let mut streams = all();
    let handle = new_handle(&mut streams);
    streams.streams.insert(
        handle,
        Stream {
            device,
            capture: None,
        },
    );
    unsafe { put(to, handle) }
}

#[no_mangle]
pub extern "C" fn cuStreamCreate(to: *mut usize, _flags: u32) -> Status {
    status(create(to))
}

#[no_mangle]
pub extern "C" fn cuStreamCreateWithPriority(
    to: *mut usize,
    _flags: u32,
    _priority: i32,
) -> Status {
    status(create(to))
}

#[no_mangle]
pub extern "C" fn cuStreamDestroy_v2(handle: usize) -> Status {
    match all().streams.remove(&handle) {
        Some(_) => SUCCESS,
        None => ERROR_INVALID_HANDLE,
    }
}

#[no_mangle]
pub extern "C" fn cuStreamSynchronize(handle: usize) -> Status {
    status(capture(handle).and_then(|captured| match captured {
        Some(id) => {
            all()
                .captures
                .get_mut(&id)
                .into_iter()
                .for_each(|capture| capture.invalid = true);
            Err(ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => {
            memory::check_all();
            Ok(())
        }
    }))
}

#[no_mangle]
pub extern "C" fn cuCtxSynchronize() -> Status {
    status(current_device().and_then(|_| {
        forbidden_in_capture()?;
        memory::check_all();
        Ok(())
    }))
}

#[no_mangle]
pub extern "C" fn cuStreamQuery(handle: usize) -> Status {
    match capture(handle) {
        Ok(None) => SUCCESS,
        Ok(Some(_)) => ERROR_STREAM_CAPTURE_UNSUPPORTED,
        Err(error) => error,
    }
}

#[no_mangle]
pub extern "C" fn cuStreamGetCtx(handle: usize, to: *mut usize) -> Status {
    status(device(handle).and_then(|device| unsafe { put(to, 0x1000 + 16 * device) }))
}

#[no_mangle]
pub extern "C" fn cuStreamWaitEvent(handle: usize, event: usize, _flags: u32) -> Status {
    let mut streams = all();
    let (stream, event) = match (get(&streams, handle), streams.events.get(&event)) {
        (Ok(stream), Some(event)) => (stream, *event),
        _ => return ERROR_INVALID_HANDLE,
    };
    match (stream.capture, event.capture) {
        // Recorded work adds this stream to its capture.
        (None, Some(id)) if streams.captures.contains_key(&id) => {
            if let Some(stream) = streams.streams.get_mut(&handle) {
                stream.capture = Some(id);
                SUCCESS
            } else {
                ERROR_STREAM_CAPTURE_IMPLICIT
            }
        }
        (Some(own), other) if other != Some(own) && event.at.is_some() => {
            streams
                .captures
                .get_mut(&own)
                .into_iter()
                .for_each(|capture| capture.invalid = true);
            ERROR_STREAM_CAPTURE_ISOLATION
        }
        _ => SUCCESS,
    }
}

// ---- Capture ----

#[no_mangle]
pub extern "C" fn cuStreamBeginCapture_v2(handle: usize, mode: u32) -> Status {
    let mut streams = all();
    if mode > 2 {
        return ERROR_INVALID_VALUE;
    }
    let id = {
        let stream = match streams.streams.get(&handle) {
            Some(stream) => *stream,
            // The default streams cannot be captured.
            None if handle <= 2 => return ERROR_STREAM_CAPTURE_UNSUPPORTED,
            None => return ERROR_INVALID_HANDLE,
        };
        if stream.capture.is_some() {
            return ERROR_ILLEGAL_STATE;
        }
        new_handle(&mut streams) as u64
    };
    streams
        .streams
        .entry(handle)
        .and_modify(|stream| stream.capture = Some(id));
    let by = std::thread::current().id();
    streams.captures.insert(
        id,
        Capture {
            id,
            mode,
            by,
            origin: handle,
            nodes: Vec::new(),
            invalid: false,
        },
    );
    SUCCESS
}

#[no_mangle]
pub extern "C" fn cuStreamEndCapture(handle: usize, to: *mut usize) -> Status {
    let mut streams = all();
    let id = match get(&streams, handle) {
        Ok(Stream {
            capture: Some(id), ..
        }) => id,
        Ok(_) => return ERROR_ILLEGAL_STATE,
        Err(error) => return error,
    };
    match streams.captures.get(&id) {
        Some(capture) if capture.origin != handle => return ERROR_INVALID_VALUE,
        _ => {}
    }
    let Some(capture) = streams.captures.remove(&id) else {
        return ERROR_STREAM_CAPTURE_INVALIDATED;
    };
    for stream in streams
        .streams
        .values_mut()
        .filter(|stream| stream.capture == Some(id))
    {
        stream.capture = None;
    }
    drop(streams);
    if capture.invalid {
        let _ = unsafe { put(to, 0) };
        return ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    status(unsafe { put(to, graph::keep(capture)) })
}

#[no_mangle]
pub extern "C" fn cuStreamIsCapturing(handle: usize, to: *mut u32) -> Status {
    let streams = all();
    status(get(&streams, handle).and_then(|stream| {
        let value = match stream.capture.map(|id| {
            streams
                .captures
                .get(&id)
                .is_some_and(|capture| !capture.invalid)
        }) {
            None => 0,
            Some(true) => 1,
            Some(false) => 2,
        };
        unsafe { put(to, value) }
    }))
}

#[no_mangle]
pub extern "C" fn cuLaunchHostFunc(
    stream: usize,
    call: Option<unsafe extern "C" fn(usize)>,
    data: usize,
) -> Status {
    status(
        call.ok_or(ERROR_INVALID_VALUE)
            .and_then(|call| submit(stream, Node::Call { call, data })),
    )
}
