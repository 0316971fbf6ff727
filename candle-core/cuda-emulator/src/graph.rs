//! Operations of streams, and lists of them that are replayed.

use crate::launch::Launch;
use crate::memory;
use crate::status::*;
use crate::stream::{self, Capture};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

#[derive(Clone)]
pub enum Node {
    Launch(Arc<Launch>),
    /// Either side may be the host's, whose memory is read or written when the node runs.
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    /// `count` times the first `width` bytes of `value`.
    Set {
        to: usize,
        value: [u8; 4],
        width: usize,
        count: usize,
    },
    Call {
        call: unsafe extern "C" fn(usize),
        data: usize,
    },
}

impl Node {
    pub fn run(&self) -> Result<(), Status> {
        match self {
            Node::Launch(launch) => launch.run(),
            Node::Copy { to, from, bytes } => {
                unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes) };
                Ok(())
            }
            Node::Set {
                to,
                value,
                width,
                count,
            } => {
                memory::expect_within(*to, width * count)?;
                let bytes =
                    unsafe { std::slice::from_raw_parts_mut(*to as *mut u8, width * count) };
                bytes
                    .chunks_exact_mut(*width)
                    .for_each(|element| element.copy_from_slice(&value[..*width]));
                Ok(())
            }
            Node::Call { call, data } => {
                unsafe { call(*data) };
                Ok(())
            }
        }
    }
}

/// The nodes of a capture, in the order of the calls, which satisfies their dependencies.
struct Graph {
    capture: u64,
    nodes: Vec<Node>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        memory::free_capture(self.capture);
    }
}

#[derive(Default)]
struct Graphs {
    graphs: HashMap<usize, Arc<Graph>>,
    instances: HashMap<usize, Arc<Graph>>,
    last_handle: usize,
}

fn all() -> MutexGuard<'static, Graphs> {
    static ALL: LazyLock<Mutex<Graphs>> = LazyLock::new(Mutex::default);
    ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Converts a capture to a graph and returns its handle.
pub fn keep(capture: Capture) -> usize {
    let mut graphs = all();
    graphs.last_handle += 64;
    let handle = 0x80_0000 + graphs.last_handle;
    graphs.graphs.insert(
        handle,
        Arc::new(Graph {
            capture: capture.id,
            nodes: capture.nodes,
        }),
    );
    handle
}

#[no_mangle]
pub extern "C" fn cuGraphInstantiateWithFlags(to: *mut usize, graph: usize, flags: u64) -> Status {
    // Freed at a launch, or launched by the device: not both.
    if flags & !0xf != 0 || flags & 5 == 5 {
        return ERROR_INVALID_VALUE;
    }
    if flags & 4 != 0 {
        return ERROR_NOT_SUPPORTED;
    }
    let mut graphs = all();
    let Some(graph) = graphs.graphs.get(&graph).cloned() else {
        return ERROR_INVALID_VALUE;
    };
    graphs.last_handle += 64;
    let handle = 0x80_0000 + graphs.last_handle;
    graphs.instances.insert(handle, graph);
    status(unsafe { put(to, handle) })
}

#[no_mangle]
pub extern "C" fn cuGraphUpload(instance: usize, _stream: usize) -> Status {
    match all().instances.get(&instance) {
        Some(_) => SUCCESS,
        None => ERROR_INVALID_VALUE,
    }
}

#[no_mangle]
pub extern "C" fn cuGraphLaunch(instance: usize, stream: usize) -> Status {
    let Some(graph) = all().instances.get(&instance).cloned() else {
        return ERROR_INVALID_VALUE;
    };
    status(
        graph
            .nodes
            .iter()
            .try_for_each(|node| stream::submit(stream, node.clone())),
    )
}

#[no_mangle]
pub extern "C" fn cuGraphGetNodes(graph: usize, _nodes: *mut usize, count: *mut usize) -> Status {
    match all().graphs.get(&graph) {
        Some(graph) => status(unsafe { put(count, graph.nodes.len()) }),
        None => ERROR_INVALID_VALUE,
    }
}

#[no_mangle]
pub extern "C" fn cuGraphDestroy(graph: usize) -> Status {
    let removed = all().graphs.remove(&graph);
    removed.map_or(ERROR_INVALID_VALUE, |_| SUCCESS)
}

#[no_mangle]
pub extern "C" fn cuGraphExecDestroy(instance: usize) -> Status {
    let removed = all().instances.remove(&instance);
    removed.map_or(ERROR_INVALID_VALUE, |_| SUCCESS)
}
