//! Which keys a query sees and what is added to their scores, as bits that kernels are specialised for.

use super::{Sizes, OP};
use crate::backend::BackendStorage;
use crate::cuda_backend::ops::fused::{float_type, SdpaParams};
use crate::cuda_backend::CudaDevice;
use crate::{DType, Result};

/// The largest distance that kernels tell from others, so that sums of them stay in an i32.
pub(super) const FAR: usize = 0x1fff_ffff;

/// The bits of RULES in `kernels/attention.cu`.
mod bit {
    pub(super) const SOFTCAP: u32 = 1;
    pub(super) const CAUSAL: u32 = 2;
    pub(super) const LEFT: u32 = 4;
    pub(super) const RIGHT: u32 = 8;
    pub(super) const STARTS: u32 = 16;
    pub(super) const LENS: u32 = 32;
    pub(super) const SLOPES: u32 = 64;
    pub(super) const SINKS: u32 = 128;
    pub(super) const BLIND: u32 = 256;
    pub(super) const BIASED: u32 = 512;
}

/// What a kernel is specialised for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) bits: u32,
    /// The C++ type of the bias; of anything if there is none.
    pub(super) bias: &'static str,
}

impl Rules {
    pub(super) fn new(params: &SdpaParams<'_>, sizes: &Sizes, device: &CudaDevice) -> Result<Self> {
        // The last query is at the last key.
        let at_the_end = params.starts.is_none() && sizes.queries <= sizes.keys;
        let causal = at_the_end && params.right == Some(0);
        let dims = [sizes.batch, sizes.heads, sizes.queries, sizes.keys];
        let bias = match params.bias {
            Some((bias, layout)) if layout.dims() == dims => {
                Some(float_type(device, bias.dtype(), OP)?)
            }
            Some((_, layout)) => crate::bail!("sdpa: a bias of {:?} for {dims:?}", layout.shape()),
            None => None,
        };
        for (name, vector, len, dtype) in [
            ("slopes", params.slopes, sizes.heads, DType::F32),
            ("sinks", params.sinks, sizes.heads, DType::F32),
            ("starts", params.starts, sizes.batch, DType::U32),
            ("lens", params.lens, sizes.batch, DType::U32),
        ] {
            let Some((storage, layout)) = vector else {
                continue;
            };
            let fits = layout.dims() == [len] && layout.is_contiguous();
            if !fits || storage.dtype() != dtype {
                crate::bail!(
                    "sdpa: {name} are {:?} of {:?}, they have to be {len} contiguous elements of {dtype:?}",
                    layout.shape(),
                    storage.dtype()
                )
            }
        }
        // One query at the last key sees all that is behind it.
        let to_the_end = at_the_end && sizes.queries == 1 && params.right.is_some();
        let by_distance = params.left.is_some() || params.right.is_some();
        let blind = bias.is_some() || params.lens.is_some() || by_distance && !at_the_end;
        let bits = [
            (bit::SOFTCAP, params.softcap.is_some()),
            (bit::CAUSAL, causal),
            (bit::LEFT, params.left.is_some()),
            (bit::RIGHT, params.right.is_some() && !causal && !to_the_end),
            (bit::STARTS, params.starts.is_some()),
            (bit::LENS, params.lens.is_some()),
            (bit::SLOPES, params.slopes.is_some()),
            (bit::SINKS, params.sinks.is_some()),
            (bit::BLIND, blind),
            (bit::BIASED, bias.is_some()),
        ];
        let set = bits.into_iter().filter(|(_, on)| *on);
        Ok(Self {
            bits: set.fold(0, |all, (bit, _)| all | bit),
            bias: bias.unwrap_or("f32"),
        })
    }

    /// A row may see no key.
    pub(super) fn blind(self) -> bool {
        self.bits & bit::BLIND != 0
    }
}
