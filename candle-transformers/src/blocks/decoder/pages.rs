//! Slots whose keys and values are pages of one pool per layer.

use candle_core::{bail, Device, Result, Tensor};

use super::{Decoder, DecoderState, LayerState, MixerSpec};
use crate::blocks::paged::PageRows;

/// The pages of each slot.
#[derive(Debug, Clone)]
pub(super) struct SlotPages {
    page: usize,
    /// Pages that slots can have. The pools have one more, which rows without pages write to.
    count: usize,
    slots: Vec<Vec<u32>>,
}

impl SlotPages {
    /// Positions that slots can have together.
    #[cfg(feature = "cuda")]
    pub(super) fn positions(&self) -> usize {
        self.count * self.page
    }

    /// Where the slots from `first` on have their first `keys` positions, and the `t` new ones from each of `starts` on. A slot without pages
    /// is an idle row.
    ///
    /// # Errors
    /// A slot has too few pages for its new positions.
    pub(super) fn indices(
        &self,
        first: usize,
        starts: &[usize],
        t: usize,
        keys: usize,
    ) -> Result<PageIndices> {
        let Self { page, count, .. } = *self;
        let columns = keys.div_ceil(page);
        let mut table = vec![count as u32; starts.len() * columns];
        let mut places = Vec::with_capacity(starts.len() * t);
        for (row, start) in starts.iter().enumerate() {
            let pages = &self.slots[first + row];
            if pages.is_empty() {
                places.extend((0..t).map(|i| (count * page + i % page) as u32));
                continue;
            }
            if pages.len() * page < start + t {
                bail!(
                    "slot {} has {} pages of {page} positions, too few for {t} tokens from position {start} on",
                    first + row,
                    pages.len()
                )
            }
            let shown = pages.len().min(columns);
            table[row * columns..][..shown].copy_from_slice(&pages[..shown]);
            let place = |at: usize| pages[at / page] as usize * page + at % page;
            places.extend((*start..start + t).map(|at| place(at) as u32));
        }
        Ok(PageIndices {
            rows: starts.len(),
            table,
            places,
            page,
        })
    }
}

/// The values of [`PageRows`], on the host.
#[derive(Debug)]
pub(super) struct PageIndices {
    rows: usize,
    table: Vec<u32>,
    places: Vec<u32>,
    page: usize,
}

impl PageIndices {
    pub(super) fn to_device(&self, device: &Device) -> Result<PageRows> {
        Ok(PageRows {
            table: self.rows_of(&self.table, device)?,
            places: self.rows_of(&self.places, device)?,
            page: self.page,
        })
    }

    /// Overwrites those of `to` that are not the same in `before`, the values that `to` has.
    #[cfg(feature = "cuda")]
    pub(super) fn write(&self, to: &PageRows, before: &Self) -> Result<()> {
        let write = |to: &Tensor, new: &[u32], old: &[u32]| {
            if new == old {
                return Ok(());
            }
            to.slice_set(&self.rows_of(new, to.device())?, 0, 0)
        };
        write(&to.table, &self.table, &before.table)?;
        write(&to.places, &self.places, &before.places)
    }

    fn rows_of(&self, values: &[u32], device: &Device) -> Result<Tensor> {
        Tensor::from_slice(values, (self.rows, values.len() / self.rows.max(1)), device)
    }
}

impl DecoderState {
    /// Gives a slot of [`Decoder::new_paged_slots`] these pages, the first of which hold `len` positions. Without pages the slot is idle:
    /// a call computes nothing for it that has a meaning.
    ///
    /// # Errors
    /// If the state has no pages, no such slot, or no such page, or the pages have fewer positions.
    pub fn set_pages(&mut self, slot: usize, pages: &[u32], len: usize) -> Result<()> {
        let Some(all) = &mut self.pages else {
            bail!("the slots of this state have no pages; see Decoder::new_paged_slots")
        };
        let (page, count) = (all.page, all.count);
        let found = all.slots.get_mut(slot).zip(self.lens.get_mut(slot));
        let fits = pages.iter().all(|page| (*page as usize) < count) && len <= pages.len() * page;
        let Some((held, positions)) = found.filter(|_| fits) else {
            bail!("cannot give slot {slot} the pages {pages:?} with {len} positions: there are {count} pages of {page} positions")
        };
        held.clear();
        held.extend(pages);
        *positions = len;
        Ok(())
    }
}

impl Decoder {
    /// As [`new_slots`](Self::new_slots), with keys and values in `pages` pages of `page` positions each, which slots get with
    /// [`DecoderState::set_pages`]. The memory is allocated here. Clones of the state share it, so only one of them can be used.
    ///
    /// # Errors
    /// If a layer is not attention over keys and values, the device has no attention over pages, layers are on the CPU beside it, a size is 0, or the device
    /// has too little memory.
    pub fn new_paged_slots(&self, count: usize, pages: usize, page: usize) -> Result<DecoderState> {
        let mut state = self.new_slots(count)?;
        let family = self.spec.family;
        let in_pages = |layer: &super::LayerSpec| matches!(layer.mixer, MixerSpec::Attention(_));
        if !self.spec.layers.iter().all(in_pages) {
            bail!("{family}: a cache in pages (--cache-memory) takes layers of attention over keys and values alone")
        }
        let has_kernels = self.device.is_cpu() || self.device.is_wgpu() || self.device.is_cuda();
        if !has_kernels {
            bail!(
                "{family}: a cache in pages (--cache-memory) is not supported on {:?}; it is on the CPU, CUDA and WebGPU",
                self.device.location()
            )
        }
        if self.offload.is_some() {
            bail!("{family}: a cache in pages (--cache-memory) takes no layers on the CPU")
        }
        // Positions of the pools are counted in 32 bits.
        let positions = (pages.checked_add(1))
            .and_then(|pages| pages.checked_mul(page))
            .filter(|positions| pages * page > 0 && *positions <= u32::MAX as usize);
        let Some(positions) = positions else {
            bail!("{family}: {pages} pages of {page} positions; both must be at least 1, with less than 2^32 positions")
        };
        self.check_pools(positions)?;
        for (layer, spec) in state.layers.iter_mut().zip(&self.spec.layers) {
            if let (LayerState::Attention(kv), MixerSpec::Attention(spec)) = (layer, &spec.mixer) {
                let shape = (1, 2 * spec.kv_heads, positions, spec.head_dim);
                kv.pool = Some(Tensor::zeros(shape, self.kv_dtype(), &self.device)?);
            }
        }
        state.pages = Some(SlotPages {
            page,
            count: pages,
            slots: vec![Vec::new(); count],
        });
        Ok(state)
    }

    /// Refuses pools that kernels cannot reach.
    #[cfg(feature = "webgpu")]
    fn check_pools(&self, positions: usize) -> Result<()> {
        let Device::WebGpu(device) = &self.device else {
            return Ok(());
        };
        let dim = |layer: &super::LayerSpec| match &layer.mixer {
            MixerSpec::Attention(spec) => 2 * spec.kv_dim(),
            _ => 0,
        };
        let dim = self.spec.layers.iter().map(dim).max().unwrap_or(0);
        let position = dim * self.kv_dtype().size_in_bytes();
        let most = device.max_binding_bytes();
        if (position * positions) as u64 > most {
            bail!(
                "{}: a layer's pages take {} bytes, more than the {most} that a kernel can bind on this WebGPU device; give --cache-memory \
                 at most {} bytes",
                self.spec.family,
                position * positions,
                most as usize / position.max(1) * self.bytes_per_position()
            )
        }
        Ok(())
    }

    #[cfg(not(feature = "webgpu"))]
    fn check_pools(&self, _: usize) -> Result<()> {
        Ok(())
    }

    /// Bytes of the keys and values of a position over all attention layers.
    pub fn bytes_per_position(&self) -> usize {
        let dims = self.spec.layers.iter().map(|layer| match &layer.mixer {
            MixerSpec::Attention(spec) | MixerSpec::Both(spec, _) => 2 * spec.kv_dim(),
            _ => 0,
        });
        dims.sum::<usize>() * self.kv_dtype().size_in_bytes()
    }
}
