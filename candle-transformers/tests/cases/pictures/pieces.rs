//! Prompts with images in pieces, and the steps after them.

use candle_core::{test_device, Device, Result, Tensor};
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::{Decoder, DecoderState};
use candle_transformers::pictures::{Run, Sees};

use super::{cases, close, tolerance, Case};

/// A sequence, or a slot of several.
struct Reader<'a> {
    case: &'a Case,
    decoder: &'a Decoder,
    features: &'a Tensor,
    state: DecoderState,
    slot: Option<usize>,
    seen: usize,
    logits: Vec<f32>,
}

impl Reader<'_> {
    /// Reads up to the token `end`, with the positions of images.
    fn read(&mut self, end: usize) -> Result<()> {
        let (spec, ids) = (self.case.spec()?, &self.case.ids);
        let count = |ids: &[u32]| ids.iter().filter(|id| **id == spec.token()).count();
        let run = Run {
            range: self.seen..end,
            vectors: count(&ids[self.seen..end]),
            sees: Sees::Before,
        };
        let vectors = self
            .features
            .narrow(0, count(&ids[..self.seen]), run.vectors)?;
        let positions = spec.positions(ids, &self.case.sizes)?;
        let input = spec.input(self.decoder, ids, &run, &vectors, positions.as_deref())?;
        let state = &mut self.state;
        let hidden = match self.slot {
            Some(slot) => self.decoder.forward_slot_seen(&input, slot, state)?,
            None => self.decoder.forward_seen(&input, self.seen, state)?,
        };
        let logits = hidden.logits()?.flatten_all()?;
        self.logits.extend(logits.to_vec1::<f32>()?);
        self.seen = end;
        Ok(())
    }

    /// Reads one token of text, whose position nobody says.
    fn step(&mut self) -> Result<()> {
        let ids = &self.case.ids[self.seen..self.seen + 1];
        let ids = Tensor::new(ids, self.decoder.device())?.unsqueeze(0)?;
        let state = &mut self.state;
        let hidden = match self.slot {
            Some(slot) => self.decoder.forward_slots(&ids, &[1], slot, state)?,
            None => self.decoder.forward(&ids, self.seen, state)?,
        };
        let logits = hidden.logits()?.flatten_all()?;
        self.logits.extend(logits.to_vec1::<f32>()?);
        self.seen += 1;
        Ok(())
    }

    /// Forgets what follows the first `len` tokens.
    fn cut(&mut self, len: usize) -> Result<()> {
        match self.slot {
            Some(slot) => self.state.cut_slot(slot, len)?,
            None => assert!(self.state.truncate(len)?),
        }
        let vocab = self.logits.len() / self.seen;
        self.logits.truncate(len * vocab);
        self.seen = len;
        Ok(())
    }
}

/// Pieces that end inside images, and steps of text after them; again after going back, and in a copy of a slot.
fn pieces_and_steps(device: &Device) -> Result<()> {
    for case in cases().cases {
        let (name, spec) = (&case.name, case.spec()?);
        if spec.sees() == Sees::All {
            continue;
        }
        let vb = case.vb(str::to_string, device)?;
        let features = case.features(vb.clone(), device)?;
        let decoder = Decoder::from_vb(config_spec(&case.config.to_string())?, vb)?;
        let ids = &case.ids;
        let is_image = |id: &u32| *id == spec.token();
        let last = ids.iter().rposition(is_image).expect("an image");
        let first = ids.iter().position(is_image).expect("an image");
        let first_end = first + ids[first..].iter().take_while(|id| is_image(id)).count();
        for slot in [None, Some(1)] {
            let mut reader = Reader {
                case: &case,
                decoder: &decoder,
                features: &features,
                state: match slot {
                    Some(_) => decoder.new_slots(3)?,
                    None => decoder.new_state(),
                },
                slot,
                seen: 0,
                logits: Vec::new(),
            };
            let all = |reader: &mut Reader, piece: usize| {
                while reader.seen <= last {
                    reader.read((reader.seen + piece).min(last + 1))?;
                }
                while reader.seen < ids.len() {
                    reader.step()?;
                }
                close(name, &reader.logits, &case.logits, tolerance(device));
                Ok::<_, candle_core::Error>(())
            };
            all(&mut reader, 3)?;
            // Behind the last image, and behind the first.
            reader.cut(ids.len() - 1)?;
            all(&mut reader, 3)?;
            reader.cut(first_end)?;
            all(&mut reader, 2)?;
            if slot.is_some() {
                reader.state.copy_slot(1, 2, ids.len() - 1)?;
                reader.state.cut_slot(1, 0)?;
                let text = Tensor::new(&[[3u32, 4, 5]], device)?;
                decoder.forward_slots(&text, &[3], 1, &mut reader.state)?;
                reader.slot = Some(2);
                let vocab = reader.logits.len() / reader.seen;
                reader.seen = ids.len() - 1;
                reader.logits.truncate(reader.seen * vocab);
                all(&mut reader, 3)?;
            }
        }
    }
    Ok(())
}
test_device!(pieces_and_steps);
