//! Compares the gradient of every case with finite differences in f64 on the CPU, and gradients of other devices in f32 with those.

use candle_core::{test_device, DType, Device, Result, Tensor, Var};

use super::cases::{self, Arg, Case};
use crate::agree::{assert_close, runs_fewer, Tolerance};

/// Half the distance between the two points of a finite difference.
const STEP: f64 = 1e-5;

/// The error of a central difference is about `STEP^2` times the third derivative, plus the rounding error: 1e-16 of the function's value
/// over `STEP`.
const TOLERANCE: Tolerance = Tolerance {
    relative: 1e-6,
    absolute: 1e-7,
};

/// Returns multiples of the golden ratio modulo 1, scaled to the range; no two are close to each other.
fn spread(len: usize, seed: usize, (lo, hi): (f64, f64)) -> Vec<f64> {
    let fraction = |i: usize| (0.3 + 0.618_033_988_749_894_9 * (i + 89 * seed) as f64).fract();
    (0..len).map(|i| lo + (hi - lo) * fraction(i)).collect()
}

/// The relation between an argument and its variable: the variable's shape, and the function from one to the other.
type Layout = (
    &'static str,
    fn(&[usize]) -> Vec<usize>,
    fn(&Tensor, &[usize]) -> Result<Tensor>,
);

fn reversed(dims: &[usize]) -> Vec<usize> {
    dims.iter().rev().copied().collect()
}

const LAYOUTS: [Layout; 3] = [
    ("contiguous", |dims| dims.to_vec(), |t, _| Ok(t.clone())),
    ("strided", reversed, |t, _| {
        t.permute(reversed(&(0..t.rank()).collect::<Vec<_>>()))
    }),
    (
        "offset",
        |dims| dims.iter().map(|&size| size + 1).collect(),
        |t, dims| {
            let mut sizes = dims.iter().enumerate();
            sizes.try_fold(t.clone(), |t, (dim, &size)| t.narrow(dim, 1, size))
        },
    ),
];

const BROADCAST: Layout = (
    "broadcast",
    |dims| dims.iter().map(|_| 1).collect(),
    |t, dims| t.broadcast_as(dims),
);

/// The variables of a case, and the sum of its results with weights that differ by element.
struct Problem<'a> {
    case: &'a Case,
    layout: Layout,
    vars: Vec<Var>,
}

impl<'a> Problem<'a> {
    fn new(case: &'a Case, layout: Layout, dtype: DType, device: &Device) -> Result<Self> {
        let var = |(seed, &(dims, lo, hi)): (usize, &Arg)| {
            let dims = layout.1(dims);
            let data = spread(dims.iter().product(), seed, (lo, hi));
            let data = Tensor::from_vec(data, dims, &Device::Cpu)?.to_dtype(dtype)?;
            Var::from_tensor(&data.to_device(device)?)
        };
        let vars = case.args.iter().enumerate().map(var);
        Ok(Self {
            case,
            layout,
            vars: vars.collect::<Result<_>>()?,
        })
    }

    fn loss(&self) -> Result<Tensor> {
        let args = self.vars.iter().zip(&self.case.args);
        let args = args.map(|(var, (dims, ..))| self.layout.2(var, dims));
        let out = (self.case.f)(&args.collect::<Result<Vec<_>>>()?)?;
        let weights = spread(out.elem_count(), 7, (-1., 1.));
        let weights = Tensor::from_vec(weights, out.shape(), &Device::Cpu)?;
        let weights = weights.to_dtype(out.dtype())?.to_device(out.device())?;
        (out * weights)?.sum_all()
    }

    fn gradients(&self) -> Result<Vec<Tensor>> {
        let grads = self.loss()?.backward()?;
        let grad = |var: &Var| match grads.get(var) {
            Some(grad) => Ok(grad.clone()),
            None if self.case.partial => var.zeros_like(),
            None => candle_core::bail!("{}: no gradient", self.case.name),
        };
        self.vars.iter().map(grad).collect()
    }

    /// Returns `(f(x + STEP) - f(x - STEP)) / (2 STEP)` for each element of each variable.
    fn differences(&self) -> Result<Vec<Tensor>> {
        let differences = |var: &Var| {
            let at = var.flatten_all()?.to_vec1::<f64>()?;
            let loss = |i: usize, step: f64| {
                let mut moved = at.clone();
                moved[i] += step;
                var.set(&Tensor::from_vec(moved, var.shape(), var.device())?)?;
                self.loss()?.to_scalar::<f64>()
            };
            let difference = |i| Ok((loss(i, STEP)? - loss(i, -STEP)?) / (2. * STEP));
            let slopes = (0..at.len())
                .map(difference)
                .collect::<Result<Vec<f64>>>()?;
            var.set(&Tensor::from_slice(&at, var.shape(), var.device())?)?;
            Tensor::from_vec(slopes, var.shape(), var.device())
        };
        self.vars.iter().map(differences).collect()
    }
}

fn layouts(case: &Case) -> Vec<Layout> {
    let mut layouts = LAYOUTS.to_vec();
    if case.smooth {
        layouts.push(BROADCAST);
    }
    layouts
}

#[test]
fn gradients_are_slopes() -> Result<()> {
    let mut failed = vec![];
    for case in cases::all() {
        for layout in layouts(&case) {
            let problem = Problem::new(&case, layout, DType::F64, &Device::Cpu)?;
            let outcome = problem.gradients().and_then(|got| {
                let what = format!("{}, {}", case.name, layout.0);
                for (i, (got, want)) in got.iter().zip(problem.differences()?).enumerate() {
                    assert_close(got, &want, TOLERANCE, &format!("{what}, argument {i}"))?;
                }
                Ok(())
            });
            if let Err(error) = outcome {
                failed.push(format!("{}, {}: {error}", case.name, layout.0));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// Compares f32 on `device` with f64 on the CPU.
fn devices_agree(device: &Device) -> Result<()> {
    // Sums of a few dozen terms of at most about 10, each with a relative error of about 1e-7.
    let tolerance = Tolerance {
        relative: 1e-5,
        absolute: 1e-4,
    };
    let on_cpu = device.is_cpu();
    // Each layout is a kernel to compile.
    let one = runs_fewer(device);
    for (i, case) in cases::all().into_iter().enumerate() {
        if !case.everywhere && !on_cpu {
            continue;
        }
        let layouts = layouts(&case);
        let (first, step) = if one {
            (i % layouts.len(), layouts.len())
        } else {
            (0, 1)
        };
        for layout in layouts.into_iter().skip(first).step_by(step) {
            let want = Problem::new(&case, layout, DType::F64, &Device::Cpu)?.gradients()?;
            let got = Problem::new(&case, layout, DType::F32, device)?.gradients()?;
            for (got, want) in got.iter().zip(want) {
                let what = format!("{}, {}", case.name, layout.0);
                assert_close(got, &want.to_dtype(DType::F32)?, tolerance, &what)?;
            }
        }
    }
    Ok(())
}
test_device!(devices_agree);
