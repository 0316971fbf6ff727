//! Keys and values in pages: which text has which, and who waits when there are too few.
//!
//! A text has pages for the positions that it holds. Whole pieces of prompts stay in a radix tree for texts that begin alike
//! (`candle_nn::kv_cache::PageCache`). When the pages run out, the youngest text returns its own and waits. Later it reads its prompt again in
//! the same pieces, and its other tokens one by one as they were made: it holds the same numbers then.

use super::scheduler::Scheduler;
use super::usage::Counts;
use super::BatchSettings;
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::{Error, Result};
use candle_nn::kv_cache::{PageCache, PageList};
use candle_transformers::parallel::ParallelState;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

const DOING: &str = "sharing the cache";
/// Positions of a page, for pieces that are whole pages and for others.
const PAGE: usize = 32;
const SMALL_PAGE: usize = 16;

/// The pages of all slots.
pub(super) struct Memory {
    cache: PageCache,
    lists: Vec<PageList>,
    /// How many tokens each slot's text had when it began: it has pages for those that it has read, and will need the others.
    begun: Vec<usize>,
    /// Prompts are shared in steps of this many tokens.
    piece: usize,
    pub(super) counts: Arc<Counts>,
}

impl Memory {
    /// Pages of `bytes` for the keys and values of `backend`.
    ///
    /// # Errors
    /// A model whose texts cannot share a cache in pages, or too few bytes for two pages.
    pub(super) fn new(
        backend: &CandleBackend,
        settings: BatchSettings,
        bytes: u64,
    ) -> Result<Self> {
        let page = page_of(settings);
        // Whether there can be pages at all, before they are counted.
        backend.new_paged_slots(settings.slots, 1, page)?;
        let position = backend.decoder().bytes_per_position();
        let page_bytes = (position * page) as u64;
        // One page is for rows without a text.
        let pages = (bytes.checked_div(page_bytes).unwrap_or(0)).saturating_sub(1);
        if pages == 0 {
            return Err(Error::Parameter {
                name: "cache_memory",
                value: bytes.to_string(),
                expected: "memory for two pages: 2 * 32 positions' keys and values over all layers",
            });
        }
        let counts = Counts {
            page_bytes,
            pages,
            ..Counts::default()
        };
        let lists = (0..settings.slots).map(|_| PageList::default());
        Ok(Self {
            cache: PageCache::new(pages as usize, page).doing(DOING)?,
            lists: lists.collect(),
            begun: vec![0; settings.slots],
            piece: settings.piece_len(),
            counts: Arc::new(counts),
        })
    }

    /// A state with these pages.
    pub(super) fn new_state(&self, backend: &CandleBackend) -> Result<ParallelState> {
        backend.new_paged_slots(self.lists.len(), self.cache.total(), self.cache.page())
    }

    /// The longest text that fits when it is alone.
    pub(super) fn positions(&self) -> usize {
        self.cache.total() * self.cache.page()
    }

    /// Forgets all texts and beginnings.
    fn clear(&mut self) -> Result<()> {
        self.cache = PageCache::new(self.cache.total(), self.cache.page()).doing(DOING)?;
        self.lists
            .iter_mut()
            .for_each(|list| *list = PageList::default());
        self.begun.fill(0);
        Ok(())
    }

    /// Texts that have pages.
    fn holders(&self) -> usize {
        self.lists.iter().filter(|list| !list.is_empty()).count()
    }

    /// Pages that texts which read their tokens have not taken yet. Without them being counted, more texts would begin than the pages can hold, and
    /// the younger ones would give up what they have read.
    fn promised(&self) -> usize {
        let texts = self.begun.iter().zip(&self.lists);
        let missing = texts.map(|(tokens, list)| {
            let pages = self.cache.pages_for(*tokens);
            pages.saturating_sub(list.pages().len())
        });
        missing.sum()
    }

    pub(super) fn has_pages(&self, slot: usize) -> bool {
        !self.lists[slot].is_empty()
    }

    /// Gives a slot without pages those that hold the beginning of `prompt`, and others up to the position behind `tokens` in all. `None`, and
    /// nothing changes, if there are too few besides those that the texts which run will need for their prompts, and one more for each. The last token of a prompt is not shared: logits come from it.
    fn begin(
        &mut self,
        slot: usize,
        prompt: &[u32],
        tokens: usize,
        state: &mut ParallelState,
    ) -> Result<Option<usize>> {
        let known = &prompt[..prompt.len().saturating_sub(1)];
        let holders = self.holders();
        let mut list = self.cache.begin(known, self.piece);
        let shared = list.pages().len() * self.cache.page();
        let missing = self.cache.pages_for(tokens) - list.pages().len();
        let fits = missing + self.promised() + holders <= self.cache.available() || holders == 0;
        if !fits || !self.cache.grow(&mut list, shared + 1) {
            self.cache.release(list);
            return Ok(None);
        }
        state.set_pages(slot, list.pages(), shared).doing(DOING)?;
        self.lists[slot] = list;
        self.begun[slot] = tokens;
        Ok(Some(shared))
    }

    /// Gives a slot whose first `held` tokens are in whole pieces the pages of the longest beginning of `prompt` that is kept by now; how many
    /// positions they hold. `None`, and nothing changes, if they are not more than it has, or there is no page to go on with.
    fn catch_up(
        &mut self,
        slot: usize,
        prompt: &[u32],
        held: usize,
        state: &mut ParallelState,
    ) -> Result<Option<usize>> {
        let known = &prompt[..prompt.len().saturating_sub(1)];
        let shared = self.cache.shared(known, self.piece);
        if shared <= held {
            return Ok(None);
        }
        let mut list = self.cache.begin(known, self.piece);
        if !self.cache.grow(&mut list, shared + 1) {
            self.cache.release(list);
            return Ok(None);
        }
        state.set_pages(slot, list.pages(), shared).doing(DOING)?;
        let before = std::mem::replace(&mut self.lists[slot], list);
        self.cache.release(before);
        Ok(Some(shared))
    }

    /// Gives a slot room for `positions`. False if there are too few pages.
    pub(super) fn grow(
        &mut self,
        slot: usize,
        positions: usize,
        state: &mut ParallelState,
    ) -> Result<bool> {
        let list = &mut self.lists[slot];
        let before = list.pages().len();
        if !self.cache.grow(list, positions) {
            return Ok(false);
        }
        if list.pages().len() > before {
            let len = state.lens()[slot];
            state.set_pages(slot, list.pages(), len).doing(DOING)?;
        }
        Ok(true)
    }

    /// Whether each of these slots that has pages finds room for one position more than it has.
    pub(super) fn has_room(&self, slots: std::ops::Range<usize>, state: &ParallelState) -> bool {
        let missing = slots.filter(|slot| self.has_pages(*slot)).map(|slot| {
            let needed = self.cache.pages_for(state.lens()[slot] + 1);
            needed.saturating_sub(self.lists[slot].pages().len())
        });
        missing.sum::<usize>() <= self.cache.available()
    }

    fn release(&mut self, slot: usize, state: &mut ParallelState) -> Result<()> {
        self.cache.release(std::mem::take(&mut self.lists[slot]));
        self.begun[slot] = 0;
        state.set_pages(slot, &[], 0).doing(DOING)
    }

    /// Keeps the pages of the tokens `whole` that a slot has read in whole pieces.
    fn keep(&mut self, slot: usize, whole: &[u32], state: &mut ParallelState) -> Result<()> {
        let list = &mut self.lists[slot];
        self.cache.keep(whole, list);
        let len = state.lens()[slot];
        state.set_pages(slot, list.pages(), len).doing(DOING)
    }
}

/// Positions of a page: prompts are shared in whole pages that are whole pieces.
fn page_of(settings: BatchSettings) -> usize {
    match settings.piece_len().is_multiple_of(PAGE) {
        true => PAGE,
        false => SMALL_PAGE,
    }
}

/// A state with pages for the slots' kernels to be compiled: room for `longest` positions in the first slot, and for a few in the others.
pub(super) fn state_for_kernels(
    backend: &CandleBackend,
    settings: BatchSettings,
    longest: usize,
) -> Result<ParallelState> {
    let (slots, page) = (settings.slots, page_of(settings));
    let first = longest.div_ceil(page) + 1;
    let mut state = backend.new_paged_slots(slots, first + slots, page)?;
    let pages: Vec<u32> = (0..(first + slots) as u32).collect();
    for slot in 0..slots {
        let own = match slot {
            0 => &pages[..first],
            _ => &pages[first + slot..=first + slot],
        };
        state.set_pages(slot, own, 0).doing(DOING)?;
    }
    Ok(state)
}

impl Scheduler<'_> {
    /// The longest text.
    pub(super) fn positions(&self) -> usize {
        let memory = self.memory.as_ref();
        let most = memory.map_or(usize::MAX, Memory::positions);
        self.backend.slot_positions().min(most)
    }

    /// Whether a text with the prompt `tokens` can begin: no text that began before waits for pages, and there are enough. A text with pages
    /// that are not enough later makes the youngest wait.
    pub(super) fn can_begin(&mut self, slot: usize, tokens: &[u32]) -> Result<bool> {
        if self.memory.is_none() {
            return Ok(true);
        }
        if self.slots.iter().any(|slot| slot.is_parked()) {
            return Ok(false);
        }
        let begun = self.begin_pages(slot, tokens, tokens.len())?;
        if begun.is_some() {
            self.free_pages(slot);
        }
        Ok(begun.is_some())
    }

    /// The pages of a text that begins, or goes on with `tokens` in all; how many positions they hold.
    pub(super) fn begin_pages(
        &mut self,
        slot: usize,
        prompt: &[u32],
        tokens: usize,
    ) -> Result<Option<usize>> {
        match &mut self.memory {
            Some(memory) => memory.begin(slot, prompt, tokens, &mut self.state),
            None => Ok(None),
        }
    }

    /// Returns the pages of a slot.
    pub(super) fn free_pages(&mut self, slot: usize) {
        if let Some(memory) = &mut self.memory {
            if let Err(error) = memory.release(slot, &mut self.state) {
                tracing::error!(%error, slot, "cannot return a slot's pages");
            }
        }
    }

    /// Takes over what other texts with the same beginning have read since this one was last read, so that texts that begin at once read their
    /// common beginning once.
    pub(super) fn catch_up(&mut self, at: usize) -> Result<()> {
        let slot = &mut self.slots[at];
        let (Some(memory), Some(text)) = (&mut self.memory, &mut slot.text) else {
            return Ok(());
        };
        let held = slot.held.len();
        if slot.whole < held || text.pictures.has_begun() {
            return Ok(());
        }
        let prompt = &text.writer.tokens()[..text.writer.prompt_tokens()];
        if let Some(shared) = memory.catch_up(at, prompt, held, &mut self.state)? {
            slot.held = prompt[..shared].to_vec();
            slot.whole = shared;
            text.cached += shared - held;
        }
        Ok(())
    }

    /// Keeps what a slot has read in whole pieces.
    pub(super) fn keep_pages(&mut self, at: usize) -> Result<()> {
        let slot = &self.slots[at];
        match &mut self.memory {
            Some(memory) => memory.keep(at, &slot.held[..slot.whole], &mut self.state),
            None => Ok(()),
        }
    }

    /// Gives a slot room for `positions`; the youngest texts wait if that takes their pages. False if this text waits itself.
    pub(super) fn make_room(&mut self, at: usize, positions: usize) -> Result<bool> {
        loop {
            let Some(memory) = &mut self.memory else {
                return Ok(true);
            };
            if memory.grow(at, positions, &mut self.state)? {
                return Ok(true);
            }
            let with_pages = (0..self.slots.len()).filter(|slot| memory.has_pages(*slot));
            let number = |slot: &usize| self.slots[*slot].text.as_ref().map(|text| text.number);
            let youngest = with_pages.max_by_key(number).unwrap_or(at);
            if youngest == at && memory.holders() <= 1 {
                // No text is longer than all pages together, so this is a mistake of the engine; the others go on.
                let why = format!("{positions} positions of one text exceed the cache memory");
                self.done(at, Err(Error::Batch(why)));
                return Ok(false);
            }
            self.park(youngest)?;
            if youngest == at {
                return Ok(false);
            }
        }
    }

    /// The text of a slot waits until there are pages for it.
    fn park(&mut self, at: usize) -> Result<()> {
        self.free_pages(at);
        let slot = &mut self.slots[at];
        slot.held.clear();
        slot.whole = 0;
        if let Some(text) = &mut slot.text {
            text.park(self.backend)?;
            tracing::debug!(text = text.number, "the cache is full; a text waits");
        }
        if let Some(memory) = &self.memory {
            memory.counts.preemptions.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Texts that wait for pages go on, the oldest first.
    pub(super) fn resume(&mut self) -> Result<()> {
        loop {
            let parked = (0..self.slots.len()).filter(|at| self.slots[*at].is_parked());
            let number = |at: &usize| self.slots[*at].text.as_ref().map(|text| text.number);
            let Some(at) = parked.min_by_key(number) else {
                return Ok(());
            };
            let Some(text) = &self.slots[at].text else {
                return Ok(());
            };
            let all = text.writer.tokens().to_vec();
            let prompt = &all[..text.writer.prompt_tokens()];
            let Some(kept) = self.begin_pages(at, prompt, all.len())? else {
                return Ok(());
            };
            let slot = &mut self.slots[at];
            slot.held = prompt[..kept].to_vec();
            slot.whole = kept;
            if let Some(text) = &mut slot.text {
                text.parked = false;
            }
        }
    }

    /// A state and pages that hold nothing.
    pub(super) fn clear_memory(&mut self) -> Result<()> {
        match &mut self.memory {
            Some(memory) => memory.clear(),
            None => Ok(()),
        }
    }

    /// Tells the engine's owner how the memory is used.
    pub(super) fn publish(&self) {
        let Some(memory) = &self.memory else {
            return;
        };
        let parked = self.slots.iter().filter(|slot| slot.is_parked()).count();
        let counts = &memory.counts;
        counts.held.store(memory.cache.held() as u64, Relaxed);
        counts.kept.store(memory.cache.kept() as u64, Relaxed);
        counts.preempted.store(parked as u64, Relaxed);
    }
}
