//! Events: their time, and their capture.

use crate::memory;
use crate::status::*;
use crate::stream::{all, get, new_handle, Event};
use std::time::Instant;

#[no_mangle]
pub extern "C" fn cuEventCreate(to: *mut usize, flags: u32) -> Status {
    let mut streams = all();
    let handle = new_handle(&mut streams);
    streams.events.insert(
        handle,
        Event {
            timed: flags & 2 == 0,
            at: None,
            capture: None,
        },
    );
    status(unsafe { put(to, handle) })
}

#[no_mangle]
pub extern "C" fn cuEventDestroy_v2(handle: usize) -> Status {
    match all().events.remove(&handle) {
        Some(_) => SUCCESS,
        None => ERROR_INVALID_HANDLE,
    }
}

#[no_mangle]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> Status {
    let mut streams = all();
    let capture = match get(&streams, stream) {
        Ok(stream) => stream.capture,
        Err(error) => return error,
    };
    match streams.events.get_mut(&event) {
        Some(event) => {
            event.at = Some(Instant::now());
            event.capture = capture;
            SUCCESS
        }
        None => ERROR_INVALID_HANDLE,
    }
}

fn completed(handle: usize) -> Result<(), Status> {
    let streams = all();
    let event = streams.events.get(&handle).ok_or(ERROR_INVALID_HANDLE)?;
    match event.capture {
        Some(id) if streams.captures.contains_key(&id) => Err(ERROR_STREAM_CAPTURE_UNSUPPORTED),
        _ => Ok(()),
    }
}

#[no_mangle]
pub extern "C" fn cuEventQuery(event: usize) -> Status {
    status(completed(event))
}

#[no_mangle]
pub extern "C" fn cuEventSynchronize(event: usize) -> Status {
    status(completed(event).map(|()| memory::check_all()))
}

#[no_mangle]
pub extern "C" fn cuEventElapsedTime_v2(to: *mut f32, start: usize, end: usize) -> Status {
    let streams = all();
    let at = |handle| {
        streams
            .events
            .get(&handle)
            .filter(|event| event.timed)
            .and_then(|event| event.at)
    };
    match (at(start), at(end)) {
        (Some(start), Some(end)) => {
            let seconds = match end.checked_duration_since(start) {
                Some(after) => after.as_secs_f32(),
                None => -start.duration_since(end).as_secs_f32(),
            };
            status(unsafe { put(to, seconds * 1e3) })
        }
        _ => ERROR_INVALID_HANDLE,
    }
}

#[no_mangle]
pub extern "C" fn cuEventElapsedTime(to: *mut f32, start: usize, end: usize) -> Status {
    cuEventElapsedTime_v2(to, start, end)
}
