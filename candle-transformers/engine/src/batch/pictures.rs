//! Prompts with images, read into slots.

use super::scheduler::Scheduler;
use crate::error::Doing;
use crate::Result;
use candle_transformers::pictures::{Run, Sees};

impl Scheduler<'_> {
    /// Whether the text of a slot has images that are not read yet.
    pub(super) fn has_pictures(&self, at: usize) -> bool {
        let text = self.slots[at].text.as_ref();
        text.is_some_and(|text| !text.pictures.is_over())
    }

    /// As `read_piece`, of a text with images: up to `count` of its next tokens, or all of an image whose tokens see each other. How many
    /// were read; where an image cannot be encoded, the text ends with the error, and the others go on.
    pub(super) fn read_pictures(&mut self, at: usize, count: usize) -> Result<usize> {
        let backend = self.backend;
        let spec = backend.picture_spec()?;
        let slot = &self.slots[at];
        let seen = slot.held.len();
        let Some(text) = &slot.text else {
            return Ok(count);
        };
        let tokens = text.writer.tokens();
        let Some(run) = spec
            .runs(&tokens[seen..tokens.len() - 1])
            .into_iter()
            .next()
        else {
            return Ok(count);
        };
        let count = match run.sees {
            Sees::All => run.range.len(),
            Sees::Before => count.min(run.range.len()),
        };
        let piece = tokens[seen..seen + count].to_vec();
        if !self.make_room(at, seen + count + 1)? {
            return Ok(count);
        }
        let slot = &mut self.slots[at];
        let Some(text) = &mut slot.text else {
            return Ok(count);
        };
        let run = Run {
            range: seen..seen + count,
            vectors: piece.iter().filter(|id| **id == spec.token()).count(),
            ..run
        };
        let vectors = match text.pictures.take(run.vectors, backend) {
            Ok(vectors) => vectors,
            Err(error) => {
                self.done(at, Err(error));
                return Ok(count);
            }
        };
        let before = !text.pictures.has_begun();
        let decoder = backend.decoder();
        let state = self.state.on_one_device().doing("reading a prompt")?;
        let (tokens, positions) = (text.writer.tokens(), text.pictures.positions(0));
        let read = spec
            .input(decoder, tokens, &run, &vectors, positions)
            .and_then(|input| decoder.forward_slot_seen(&input, at, state));
        read.doing("reading a prompt")?;
        slot.held.extend(piece);
        if count == self.piece && before {
            slot.whole = slot.held.len();
            self.keep_pages(at)?;
        }
        Ok(count)
    }
}
