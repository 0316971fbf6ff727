//! Allocating on a stream, copying, filling.

use crate::device::current_device;
use crate::graph::Node;
use crate::memory::{self, expect_within, Kind};
use crate::status::*;
use crate::stream::{self, forbidden_in_capture, submit};

#[no_mangle]
pub extern "C" fn cuMemAlloc_v2(to: *mut usize, bytes: usize) -> Status {
    status(current_device().and_then(|device| {
        forbidden_in_capture()?;
        let allocation = memory::allocate(device, bytes, Kind::Device, None)?;
        unsafe { put(to, allocation.start) }
    }))
}

#[no_mangle]
pub extern "C" fn cuMemFree_v2(start: usize) -> Status {
    if start == 0 {
        return SUCCESS;
    }
    status(forbidden_in_capture().and_then(|()| memory::free(start, Kind::Device)))
}

#[no_mangle]
pub extern "C" fn cuMemAllocAsync(to: *mut usize, bytes: usize, stream: usize) -> Status {
    status(stream::device(stream).and_then(|device| {
        let capture = stream::capture(stream)?;
        // As on a card: 0 bytes return a null pointer, whereas `cuMemAlloc` rejects them.
        if bytes == 0 {
            return unsafe { put(to, 0) };
        }
        let allocation = memory::allocate(device, bytes, Kind::Device, capture)?;
        if capture.is_some() {
            // A replay finds it as uninitialised as the first run does.
            submit(
                stream,
                Node::Set {
                    to: allocation.start,
                    value: [0xff; 4],
                    width: 1,
                    count: bytes,
                },
            )?;
        }
        unsafe { put(to, allocation.start) }
    }))
}

#[no_mangle]
pub extern "C" fn cuMemAllocFromPoolAsync(
    to: *mut usize,
    bytes: usize,
    _pool: usize,
    stream: usize,
) -> Status {
    cuMemAllocAsync(to, bytes, stream)
}

#[no_mangle]
pub extern "C" fn cuMemFreeAsync(start: usize, stream: usize) -> Status {
    status(stream::capture(stream).and_then(|capture| match capture {
        _ if start == 0 => Ok(()),
        None => memory::free(start, Kind::Device),
        // A graph owns the memory allocated in its capture, and cannot free other memory.
        Some(id) => match memory::find(start) {
            Some(found) if found.capture == Some(id) && found.start == start => Ok(()),
            _ => Err(ERROR_INVALID_VALUE),
        },
    }))
}

/// The sides of a copy that are on a device.
#[derive(Clone, Copy)]
enum Sides {
    To,
    From,
    Both,
}

fn copy(
    stream: Option<usize>,
    to: usize,
    from: usize,
    bytes: usize,
    sides: Sides,
) -> Result<(), Status> {
    current_device()?;
    if matches!(sides, Sides::To | Sides::Both) {
        expect_within(to, bytes)?;
    }
    if matches!(sides, Sides::From | Sides::Both) {
        expect_within(from, bytes)?;
    }
    if bytes == 0 {
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(ERROR_INVALID_VALUE);
    }
    let node = Node::Copy { to, from, bytes };
    match stream {
        Some(stream) => submit(stream, node),
        None => forbidden_in_capture().and_then(|()| node.run()),
    }
}

#[no_mangle]
pub extern "C" fn cuMemcpyHtoD_v2(to: usize, from: usize, bytes: usize) -> Status {
    status(copy(None, to, from, bytes, Sides::To))
}

#[no_mangle]
pub extern "C" fn cuMemcpyDtoH_v2(to: usize, from: usize, bytes: usize) -> Status {
    status(copy(None, to, from, bytes, Sides::From).map(|()| memory::check_all()))
}

#[no_mangle]
pub extern "C" fn cuMemcpyDtoD_v2(to: usize, from: usize, bytes: usize) -> Status {
    status(copy(None, to, from, bytes, Sides::Both))
}

#[no_mangle]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: usize,
    bytes: usize,
    stream: usize,
) -> Status {
    status(copy(Some(stream), to, from, bytes, Sides::To))
}

#[no_mangle]
pub extern "C" fn cuMemcpyDtoHAsync_v2(
    to: usize,
    from: usize,
    bytes: usize,
    stream: usize,
) -> Status {
    status(copy(Some(stream), to, from, bytes, Sides::From))
}

#[no_mangle]
pub extern "C" fn cuMemcpyDtoDAsync_v2(
    to: usize,
    from: usize,
    bytes: usize,
    stream: usize,
) -> Status {
    status(copy(Some(stream), to, from, bytes, Sides::Both))
}

#[no_mangle]
pub extern "C" fn cuMemcpyPeerAsync(
    to: usize,
    _to_context: usize,
    from: usize,
    _from_context: usize,
    bytes: usize,
    stream: usize,
) -> Status {
    status(copy(Some(stream), to, from, bytes, Sides::Both))
}

fn set(
    stream: Option<usize>,
    to: usize,
    value: u32,
    width: usize,
    count: usize,
) -> Result<(), Status> {
    current_device()?;
    if !to.is_multiple_of(width) {
        return Err(ERROR_INVALID_VALUE);
    }
    expect_within(to, width.checked_mul(count).ok_or(ERROR_INVALID_VALUE)?)?;
    let node = Node::Set {
        to,
        value: value.to_le_bytes(),
        width,
        count,
    };
    match stream {
        _ if count == 0 => Ok(()),
        Some(stream) => submit(stream, node),
        None => forbidden_in_capture().and_then(|()| node.run()),
    }
}

#[no_mangle]
pub extern "C" fn cuMemsetD8_v2(to: usize, value: u8, count: usize) -> Status {
    status(set(None, to, value.into(), 1, count))
}

#[no_mangle]
pub extern "C" fn cuMemsetD16_v2(to: usize, value: u16, count: usize) -> Status {
    status(set(None, to, value.into(), 2, count))
}

#[no_mangle]
pub extern "C" fn cuMemsetD32_v2(to: usize, value: u32, count: usize) -> Status {
    status(set(None, to, value, 4, count))
}

#[no_mangle]
pub extern "C" fn cuMemsetD8Async(to: usize, value: u8, count: usize, stream: usize) -> Status {
    status(set(Some(stream), to, value.into(), 1, count))
}

#[no_mangle]
pub extern "C" fn cuMemsetD16Async(to: usize, value: u16, count: usize, stream: usize) -> Status {
    status(set(Some(stream), to, value.into(), 2, count))
}

#[no_mangle]
pub extern "C" fn cuMemsetD32Async(to: usize, value: u32, count: usize, stream: usize) -> Status {
    status(set(Some(stream), to, value, 4, count))
}
