//! Random numbers. The same seed gives the same sequence on every adapter.

use super::elementwise::functions;
use super::windows::{fit, Split};
use super::{bind, index, WORKGROUP};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Result};

params!(RandomParams {
    seed_low: u32,
    seed_high: u32,
    first_low: u32,
    first_high: u32,
    a: f32,
    b: f32,
    width: f32,
    len: u32,
});

/// `len` numbers of a distribution, whose parameters `of` makes from the storage dtype.
fn random(
    device: &WebGpuDevice,
    len: usize,
    dtype: DType,
    distribution: &'static str,
    of: impl FnOnce(Elem) -> Result<[f32; 3]>,
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
    params: [f32; 3],
}

impl Numbers {
    /// Fills `dst` with `len` numbers of the sequence that `seed` names, from number `first` on.
    fn launch(&self, dst: &WebGpuStorage, len: usize, seed: u64, first: u64) -> Result<()> {
        let Self {
            elem,
            distribution,
            params: [a, b, width],
        } = *self;
        let device = dst.device();
        device.launch(
            Key::new(distribution).elem(elem),
            || {
                Shader::new(format!("{distribution} {elem:?}"))
                    .output("dst", elem)
                    .constant("WG", WORKGROUP)
                    // For 64-bit products and sums.
                    .text(functions(Elem::I64))
                    .text(&format!(
                        "fn number(bits: vec4<u32>) -> f32 {{ return {distribution}_number(bits); }}"
                    ))
                    .body::<RandomParams>(include_str!("../shaders/random.wgsl"))
            },
            &[bind(dst)],
            &RandomParams {
                seed_low: seed as u32,
                seed_high: (seed >> 32) as u32,
                first_low: first as u32,
                first_high: (first >> 32) as u32,
                a,
                b,
                width,
                len: index(len)?,
            },
            device.grid(len.div_ceil(elem.lanes() as usize), WORKGROUP),
        )
    }
}

/// The number of a storage dtype that is nearest to `value`.
fn nearest(value: f64, elem: Elem) -> f32 {
    match elem {
        Elem::F16 => half::f16::from_f64(value).to_f32(),
        Elem::BF16 => half::bf16::from_f64(value).to_f32(),
        _ => value as f32,
    }
}

/// The number of a storage dtype before `value`, one of its own.
fn before(value: f32, elem: Elem) -> f32 {
    // The bits of a dtype's positive numbers count upwards, those of its negative ones downwards.
    let step = |bits: u16| match bits {
        0 | 0x8000 => 0x8001,
        bits if bits < 0x8000 => bits - 1,
        bits => bits + 1,
    };
    match elem {
        Elem::F16 => half::f16::from_bits(step(half::f16::from_f32(value).to_bits())).to_f32(),
        Elem::BF16 => half::bf16::from_bits(step(half::bf16::from_f32(value).to_bits())).to_f32(),
        _ => value.next_down(),
    }
}

/// Numbers from `lo` up to `up`, which is left out unless it is `lo`; both rounded to `dtype`.
pub(in super::super) fn uniform(
    device: &WebGpuDevice,
    len: usize,
    dtype: DType,
    lo: f64,
    up: f64,
) -> Result<WebGpuStorage> {
    random(device, len, dtype, "rand_uniform", |elem| {
        let (first, end) = (nearest(lo, elem), nearest(up, elem));
        let width = end - first;
        if !(width >= 0.0 && width.is_finite()) {
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
    random(device, len, dtype, "rand_normal", |_| {
        if !(mean.is_finite() && std.is_finite() && std >= 0.0) {
            crate::bail!(
                "rand_normal: needs a finite mean and a finite std of at least 0, got mean = {mean} and std = {std}"
            )
        }
        Ok([mean as f32, std as f32, 0.0])
    })
}

#[cfg(test)]
mod tests {
    use super::{before, nearest};
    use crate::webgpu_backend::kernel::Elem;

    #[test]
    fn the_number_before_is_the_next_smaller_one() {
        for elem in [Elem::F32, Elem::F16, Elem::BF16] {
            for value in [1.0, 0.1, -3.0, 0.0, -0.0, 1e-5, 65504.0] {
                let value = nearest(value, elem);
                let smaller = before(value, elem);
                assert!(smaller < value);
                let between = (f64::from(smaller) + f64::from(value)) / 2.0;
                let nearest = nearest(between, elem);
                assert!(nearest == smaller || nearest == value, "{elem:?} {value}");
            }
        }
    }
}
