//! The cosines and sines of positions.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{bail, DType, Device, Result, Tensor};

use super::Rotary;

/// Positions of a table at first. Most conversations are shorter than a model's whole context, whose table can be as large as a layer.
const INITIAL: usize = 1024;

/// Cosines and sines.
type Made = (Tensor, Tensor);

/// Cosines and sines of the positions' angles, as [`candle_nn::rotary_emb::rope`] takes them. Computed on demand, once for all clones.
#[derive(Debug, Clone)]
pub struct RotaryTables {
    rotary: Arc<Rotary>,
    limit: usize,
    dtype: DType,
    device: Device,
    /// For short sequences and for long ones.
    made: Arc<Mutex<[Option<Made>; 2]>>,
}

impl RotaryTables {
    /// Tables for `positions` positions at most.
    pub fn new(rotary: &Rotary, positions: usize, dtype: DType, device: &Device) -> Self {
        Self {
            rotary: Arc::new(rotary.clone()),
            limit: positions,
            dtype,
            device: device.clone(),
            made: Arc::default(),
        }
    }

    /// Replaces the rows of the first positions, `(positions, frequencies)` each; not those of clones. Later ones are made.
    pub fn set(&mut self, cos: Tensor, sin: Tensor) {
        self.made = Arc::new(Mutex::new([Some((cos, sin)), None]));
    }

    /// Their rotation.
    pub fn rotary(&self) -> &Rotary {
        &self.rotary
    }

    /// The rows `(cos, sin)` of the positions `start .. start + len`, `(len, frequencies)` each; views.
    ///
    /// # Errors
    /// If there are fewer positions, or no memory.
    pub fn rows(&self, start: usize, len: usize) -> Result<(Tensor, Tensor)> {
        let end = start.saturating_add(len);
        let (cos, sin) = self.until(end)?;
        Ok((cos.narrow(0, start, len)?, sin.narrow(0, start, len)?))
    }

    /// The rows of `len` positions from each of `starts` on: `(starts, len, frequencies)` each.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn rows_from(&self, starts: &[usize], len: usize) -> Result<(Tensor, Tensor)> {
        let end = starts
            .iter()
            .max()
            .map_or(0, |start| start.saturating_add(len));
        let (cos, sin) = self.until(end)?;
        let positions = starts
            .iter()
            .flat_map(|start| (0..len).map(move |i| (start + i) as u32));
        let count = starts.len() * len;
        let positions = Tensor::from_iter(positions, &self.device)?.reshape(count)?;
        let rows = |table: Tensor| {
            let columns = table.dim(1)?;
            table
                .index_select(&positions, 0)?
                .reshape((starts.len(), len, columns))
        };
        Ok((rows(cos)?, rows(sin)?))
    }

    /// Tables of at least `end` positions.
    pub(crate) fn until(&self, end: usize) -> Result<(Tensor, Tensor)> {
        if end > self.limit {
            bail!(
                "rotary tables: positions up to {end} requested, but there are {}",
                self.limit
            )
        }
        let (kind, frequencies) = (self.rotary.kind(end), self.rotary.frequencies_of(end));
        if kind > 1 {
            // Tables for this length alone.
            return self.make(end, &frequencies);
        }
        // A panic elsewhere leaves whole tables or none.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((cos, sin)) = &made[kind] {
            if end <= cos.dim(0)? {
                return Ok((cos.clone(), sin.clone()));
            }
        }
        let positions = end.next_power_of_two().max(INITIAL).min(self.limit);
        let tables = self.make(positions, &frequencies)?;
        made[kind] = Some(tables.clone());
        Ok(tables)
    }

    /// Angles, cosines and sines are computed in f32 (as the models were trained) on the host, since a GPU's `cos` may be far off for
    /// the large angles of late positions; only then are they rounded to the dtype.
    fn make(&self, positions: usize, frequencies: &[f32]) -> Result<(Tensor, Tensor)> {
        let shape = (positions, frequencies.len());
        let mut cos = Vec::with_capacity(shape.0 * shape.1);
        let mut sin = Vec::with_capacity(shape.0 * shape.1);
        for position in 0..positions {
            for frequency in frequencies {
                let (s, c) = (position as f32 * frequency).sin_cos();
                sin.push(s * self.rotary.factor);
                cos.push(c * self.rotary.factor);
            }
        }
        let table = |values| Tensor::from_vec(values, shape, &self.device)?.to_dtype(self.dtype);
        Ok((table(cos)?, table(sin)?))
    }
}
