//! Random numbers. The same seed gives the same sequence on every adapter.

use float8::F8E4M3;

use super::elementwise::functions;
use super::windows::{fit, Split};
use super::{bind, index};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Result};

params!(RandomParams {
    seed_low: u32,
    seed_high: u32,
    first_low: u32,
    first_high: u32,
    a: u32,
    b: u32,
    width: u32,
    a_high: u32,
    b_high: u32,
    width_high: u32,
    len: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Random {
    distribution: &'static str,
    elem: Elem,
}

impl Kernel for Random {
    type Params = RandomParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { distribution, elem } = *self;
        Shader::default()
            .output("dst", elem)
            .constant("UNIFORM", distribution == UNIFORM)
            .text(functions(elem))
            .text(include_str!("../shaders/philox.wgsl"))
            .text(match elem {
                Elem::F64 => include_str!("../shaders/random_float64.wgsl"),
                _ => include_str!("../shaders/random_float.wgsl"),
            })
            .each_element::<RandomParams>(include_str!("../shaders/random.wgsl"))
    }
}

const UNIFORM: &str = "rand_uniform";
const NORMAL: &str = "rand_normal";

/// `len` numbers of a distribution; `of` computes its parameters for the storage dtype.
fn random(
    device: &WebGpuDevice,
    len: usize,
    dtype: DType,
    distribution: &'static str,
    of: impl FnOnce(Elem) -> Result<[f64; 3]>,
) -> Result<WebGpuStorage> {
    let elem = device.elem(dtype, distribution)?;
    if !elem.is_float() {
        return Err(device.unsupported(distribution, dtype, "use a float dtype and convert"));
    }
    let numbers = Numbers {
        elem,
        distribution,
        params: of(elem)?,
    };
    let dst = device.alloc(len, dtype, distribution)?;
    if len == 0 {
        return Ok(dst);
    }
    let (seed, first) = device.draw(len);
    if fit([&dst]) {
        numbers.launch(&dst, len, seed, first)?;
        return Ok(dst);
    }
    let split = Split {
        op: distribution,
        dims: &[len],
        unit: 1,
        bytes: dtype.size_in_bytes(),
        inputs: [],
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        numbers.launch(&part.dst, part.dims[0], seed, first + part.start[0] as u64)
    })?;
    Ok(dst)
}

/// A distribution.
struct Numbers {
    elem: Elem,
    distribution: &'static str,
    params: [f64; 3],
}

impl Numbers {
    /// Fills `dst` with `len` numbers of the sequence of `seed`, from number `first` on.
    fn launch(&self, dst: &WebGpuStorage, len: usize, seed: u64, first: u64) -> Result<()> {
        let Self {
            elem,
            distribution,
            params,
        } = *self;
        let [a, b, width] = params.map(|value| match elem {
            Elem::F64 => value.to_bits(),
            _ => u64::from((value as f32).to_bits()),
        });
        let device = dst.device();
        device.run(
            &Random { distribution, elem },
            &[bind(dst)],
            &RandomParams {
                seed_low: seed as u32,
                seed_high: (seed >> 32) as u32,
                first_low: first as u32,
                first_high: (first >> 32) as u32,
                a: a as u32,
                b: b as u32,
                width: width as u32,
                a_high: (a >> 32) as u32,
                b_high: (b >> 32) as u32,
                width_high: (width >> 32) as u32,
                len: index(len)?,
            },
            device.grid_of_words(len, elem),
        )
    }
}

/// The nearest number to `value` in a storage dtype.
fn nearest(value: f64, elem: Elem) -> f64 {
    match elem {
        Elem::F16 => half::f16::from_f64(value).to_f64(),
        Elem::BF16 => half::bf16::from_f64(value).to_f64(),
        Elem::F8E4M3 => F8E4M3::from_f64(value).to_f64(),
        Elem::F64 => value,
        _ => f64::from(value as f32),
    }
}

/// The next smaller number in a storage dtype than `value`, which is one too.
fn before(value: f64, elem: Elem) -> f64 {
    // The bit patterns of a dtype's positive numbers ascend, those of its negative ones descend.
    let step = |bits: u16, sign: u16| match bits {
        0 => sign | 1,
        bits if bits == sign => sign | 1,
        bits if bits < sign => bits - 1,
        bits => bits + 1,
    };
    match elem {
        Elem::F16 => {
            half::f16::from_bits(step(half::f16::from_f64(value).to_bits(), 1 << 15)).to_f64()
        }
        Elem::BF16 => {
            half::bf16::from_bits(step(half::bf16::from_f64(value).to_bits(), 1 << 15)).to_f64()
        }
        Elem::F8E4M3 => {
            let bits = u16::from(F8E4M3::from_f64(value).to_bits());
            F8E4M3::from_bits(step(bits, 1 << 7) as u8).to_f64()
        }
        Elem::F64 => value.next_down(),
        _ => f64::from((value as f32).next_down()),
    }
}

/// Uniform numbers in `[lo, up)`, or all `lo` if both are equal; both are rounded to `dtype`.
pub(in super::super) fn uniform(
    device: &WebGpuDevice,
    len: usize,
    dtype: DType,
    lo: f64,
    up: f64,
) -> Result<WebGpuStorage> {
    random(device, len, dtype, UNIFORM, |elem| {
        let (first, end) = (nearest(lo, elem), nearest(up, elem));
        let width = end - first;
        let fits = elem == Elem::F64 || (width as f32).is_finite();
        if !(width >= 0.0 && width.is_finite() && fits) {
            crate::bail!(
                "rand_uniform: needs finite bounds with lo <= up and up - lo within {dtype:?}, got lo = {lo} and up = {up}"
            )
        }
        let last = if width == 0.0 {
            first
        } else {
            before(end, elem)
        };
        Ok([first, last, width])
    })
}

/// Numbers with this mean and standard deviation.
pub(in super::super) fn normal(
    device: &WebGpuDevice,
    len: usize,
    dtype: DType,
    mean: f64,
    std: f64,
) -> Result<WebGpuStorage> {
    random(device, len, dtype, NORMAL, |_| {
        if !(mean.is_finite() && std.is_finite() && std >= 0.0) {
            crate::bail!(
                "rand_normal: needs a finite mean and a finite std of at least 0, got mean = {mean} and std = {std}"
            )
        }
        Ok([mean, std, 0.0])
    })
}

#[cfg(test)]
mod tests {
    use super::{before, nearest};
    use crate::webgpu_backend::kernel::Elem;

    #[test]
    fn the_number_before_is_the_next_smaller_one() {
        for elem in [Elem::F32, Elem::F16, Elem::BF16, Elem::F8E4M3] {
            for value in [1.0, 0.1, -3.0, 0.0, -0.0, 1e-5, 65504.0] {
                let value = nearest(value, elem);
                let smaller = before(value, elem);
                assert!(smaller < value);
                let between = (smaller + value) / 2.0;
                let nearest = nearest(between, elem);
                assert!(nearest == smaller || nearest == value, "{elem:?} {value}");
            }
        }
    }
}
