//! A model's weights with the changes of adapters.

use candle_core::{bail, DType, Device, Result, Shape, Tensor};

use super::adapter::Low;
use super::plan::{Change, Plan};
use crate::blocks::{place_dense, Cut, LowRank, Reading, Stored, Wanted, WeightSource};

/// The weights of a source with the changes of a [`Plan`]: dense ones with the sums, others with separate low-rank additions.
pub struct Adapted<'a> {
    pub(super) plan: &'a Plan,
    pub(super) source: &'a mut dyn WeightSource,
}

impl Adapted<'_> {
    async fn changed(&mut self, wanted: Wanted<'_>, cut: Option<&Cut>) -> Result<Stored> {
        let stored = Wanted {
            name: self.plan.stored_name(wanted.name),
            ..wanted
        };
        let Some(change) = self.plan.changes.get(wanted.name) else {
            return match cut {
                Some(cut) => self.source.read_part(stored, cut).await,
                None => self.source.read(stored).await,
            };
        };
        // DoRA needs whole rows; the others need what they change.
        let whole = change.needs_whole();
        let weight = match cut.filter(|_| !whole) {
            Some(cut) => self.source.read_part(stored, cut).await?,
            None => self.source.read(stored).await?,
        };
        let changed = change.of(wanted, weight, cut.filter(|_| !whole))?;
        match cut.filter(|_| whole) {
            Some(cut) => cut.of(&changed.into()),
            None => Ok(changed.into()),
        }
    }
}

impl WeightSource for Adapted<'_> {
    fn contains(&self, name: &str) -> bool {
        self.source.contains(self.plan.stored_name(name))
    }

    fn makes_tensors(&self) -> bool {
        self.source.makes_tensors()
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        self.source.shape(self.plan.stored_name(name))
    }

    fn whereabouts(&self, name: &str) -> String {
        self.source.whereabouts(self.plan.stored_name(name))
    }

    fn beside(&self, name: &str) -> Result<Option<LowRank>> {
        Ok(self.plan.beside.get(name).cloned())
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(self.changed(wanted, None))
    }

    fn read_part<'a>(&'a mut self, wanted: Wanted<'a>, cut: &'a Cut) -> Reading<'a> {
        Box::pin(self.changed(wanted, Some(cut)))
    }
}

impl Change {
    fn needs_whole(&self) -> bool {
        self.added.iter().any(|(_, low)| low.magnitude.is_some())
    }

    /// The weight, or a part of it, with the changes. Sums are of f32, and the result is of the weight's dtype and on its device.
    fn of(&self, wanted: Wanted, weight: Stored, cut: Option<&Cut>) -> Result<Tensor> {
        let part = |tensor: Tensor| match cut {
            Some(cut) => match cut.of(&tensor.into())? {
                Stored::Dense(part) => Ok(part),
                Stored::Quantized(part) => part.dequantize(&Device::Cpu),
            },
            None => Ok(tensor),
        };
        // A replaced tensor may be one of blocks, which has no dtype to keep.
        let (dtype, device) = match &weight {
            Stored::Dense(weight) => (weight.dtype(), weight.device().clone()),
            Stored::Quantized(weight) => (DType::F32, weight.device()),
        };
        let mut sum = match &self.replaced {
            Some((adapter, tensor)) => {
                if tensor.dims() != wanted.shape {
                    bail!(
                        "adapter {adapter}: its tensor for {:?} has shape {:?}, but the model's has {:?}",
                        wanted.name,
                        tensor.dims(),
                        wanted.shape
                    )
                }
                part(tensor.clone())?.to_device(&device)?
            }
            None => place_dense(vec![weight], DType::F32, &device)?,
        };
        for (adapter, low) in &self.added {
            // Sources that cannot tell shapes are found out here.
            let module = format!("of adapter {adapter}");
            low.fits(&module, wanted.name, wanted.shape, self.transposed)?;
            let change = low.product(&device, self.transposed)?;
            sum = (sum + part(change)?)?;
            if let Some(magnitude) = &low.magnitude {
                sum = with_lengths(&sum, &magnitude.to_device(&device)?, self.transposed)?;
            }
        }
        sum.to_dtype(dtype)
    }
}

impl Low {
    fn product(&self, device: &Device, transposed: bool) -> Result<Tensor> {
        let (a, b) = (self.a.to_device(device)?, self.b.to_device(device)?);
        if transposed {
            a.t()?.matmul(&b.t()?)
        } else {
            b.matmul(&a)
        }
    }
}

/// DoRA: the weights of each output with another length, [arXiv 2402.09353](https://arxiv.org/abs/2402.09353).
fn with_lengths(weight: &Tensor, lengths: &Tensor, transposed: bool) -> Result<Tensor> {
    let (inputs, outputs) = if transposed { (0, 1) } else { (1, 0) };
    let norms = weight.sqr()?.sum_keepdim(inputs)?.sqrt()?;
    let mut shape = [1, 1];
    shape[outputs] = lengths.elem_count();
    let factors = (lengths.reshape(&shape)? / norms)?;
    weight.broadcast_mul(&factors)
}
