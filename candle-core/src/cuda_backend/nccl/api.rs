//! NCCL's functions, from the library that was found at run time.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;

use super::super::libraries::Library;
use crate::{bail, DType, Result};

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;

/// `ncclUniqueId`: identifies a group to its ranks.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [c_char; UniqueId::LEN]);

impl UniqueId {
    pub(super) const LEN: usize = 128;
}

/// `ncclSum`.
const SUM: c_int = 0;

/// `ncclUint8`: collectives that move elements without computing move bytes.
const BYTE: c_int = 1;

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $out:ty;)+) => {
        pub(super) struct Api {
            $($field: unsafe extern "C" fn($($arg),*) -> $out,)+
        }

        impl Api {
            fn read(library: &libloading::Library) -> std::result::Result<Self, libloading::Error> {
                // SAFETY: the types are those of `nccl.h`, which have been the same since NCCL 2.4. The library is never closed.
                unsafe {
                    Ok(Self {
                        $($field: *library.get(concat!($symbol, "\0").as_bytes())?,)+
                    })
                }
            }
        }
    };
}

functions! {
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> c_int;
    comm_init_rank = "ncclCommInitRank": fn(*mut Comm, c_int, UniqueId, c_int) -> c_int;
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> c_int;
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
    comm_abort = "ncclCommAbort": fn(Comm) -> c_int;
    comm_destroy = "ncclCommDestroy": fn(Comm) -> c_int;
    comm_async_error = "ncclCommGetAsyncError": fn(Comm, *mut c_int) -> c_int;
    error_string = "ncclGetErrorString": fn(c_int) -> *const c_char;
}

/// NCCL's number for a dtype; `None` if it does not support sums of it.
pub(super) fn sum_type(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::U8 => BYTE,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        _ => return None,
    })
}

/// The source and destination of a collective on the card.
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    pub(super) send: u64,
    pub(super) receive: u64,
    /// Number of elements or bytes that this rank sends.
    pub(super) len: usize,
}

impl Api {
    /// # Errors
    /// If NCCL is not installed, with installation instructions, or older than required.
    pub(super) fn get() -> Result<&'static Self> {
        static API: OnceLock<std::result::Result<Api, String>> = OnceLock::new();
        let found = Library::Nccl.open()?;
        let api = API.get_or_init(|| Self::read(&found.library).map_err(|err| err.to_string()));
        match api {
            Ok(api) => Ok(api),
            Err(err) => bail!(
                "NCCL of {} lacks a function; version 2.4 or later is required: {err}",
                found.path.display()
            ),
        }
    }

    fn check(&self, code: c_int, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NCCL returns a static string for any number.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        bail!(
            "{what}: NCCL: {} ({code}); set NCCL_DEBUG=WARN for details",
            text.to_string_lossy()
        )
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; UniqueId::LEN]);
        // SAFETY: the pointer is to an id.
        self.check(
            unsafe { (self.get_unique_id)(&mut id) },
            "making a group's id",
        )?;
        Ok(id)
    }

    /// Joins the group; returns when all ranks have called it. The card's context has to be current in the thread.
    pub(super) fn join(&self, world: usize, id: UniqueId, rank: usize) -> Result<Comm> {
        let mut comm = std::ptr::null_mut();
        let what = format!("joining as rank {rank} of {world}");
        // SAFETY: the pointer is to a handle; counts of ranks are small.
        let code = unsafe { (self.comm_init_rank)(&mut comm, world as c_int, id, rank as c_int) };
        self.check(code, &what)?;
        Ok(comm)
    }

    /// # Safety
    /// `comm` is alive; the buffers hold `len` elements of the type.
    pub(super) unsafe fn sum(
        &self,
        comm: Comm,
        stream: CUstream,
        buffers: Buffers,
        of: c_int,
    ) -> Result<()> {
        let (send, receive) = buffers.pointers();
        let code = (self.all_reduce)(send, receive, buffers.len, of, SUM, comm, stream);
        self.check(code, "all_reduce")
    }

    /// # Safety
    /// `comm` is alive; `len` bytes are sent, and the destination holds those of all ranks.
    pub(super) unsafe fn gather(
        &self,
        comm: Comm,
        stream: CUstream,
        buffers: Buffers,
    ) -> Result<()> {
        let (send, receive) = buffers.pointers();
        let code = (self.all_gather)(send, receive, buffers.len, BYTE, comm, stream);
        self.check(code, "all_gather")
    }

    /// # Safety
    /// `comm` is alive; the buffers hold `len` bytes.
    pub(super) unsafe fn send_all(
        &self,
        comm: Comm,
        stream: CUstream,
        buffers: Buffers,
        root: usize,
    ) -> Result<()> {
        let (send, receive) = buffers.pointers();
        let code = (self.broadcast)(
            send,
            receive,
            buffers.len,
            BYTE,
            root as c_int,
            comm,
            stream,
        );
        self.check(code, "broadcast")
    }

    /// The first asynchronous error since the group was created.
    ///
    /// # Safety
    /// `comm` is alive.
    pub(super) unsafe fn async_error(&self, comm: Comm) -> Result<()> {
        let mut code = 0;
        let asked = (self.comm_async_error)(comm, &mut code);
        self.check(asked, "querying errors")?;
        /// `ncclInProgress`.
        const IN_PROGRESS: c_int = 7;
        match code {
            IN_PROGRESS => Ok(()),
            code => self.check(code, "a collective in flight"),
        }
    }

    /// Aborts collectives that wait in the stream.
    ///
    /// # Safety
    /// `comm` is not used afterwards.
    pub(super) unsafe fn abort(&self, comm: Comm) -> Result<()> {
        self.check((self.comm_abort)(comm), "ending a group")
    }

    /// # Safety
    /// All work queued in the stream is done; `comm` is not used afterwards.
    pub(super) unsafe fn destroy(&self, comm: Comm) -> Result<()> {
        self.check((self.comm_destroy)(comm), "closing a group")
    }
}

impl Buffers {
    fn pointers(self) -> (*const c_void, *mut c_void) {
        (self.send as *const c_void, self.receive as *mut c_void)
    }
}
