//! Images of another size, to the last bit as Pillow up to 12 makes them (13 begins with the columns in some cases, and rounds
//! otherwise): two passes, along rows and then along columns, each in whole numbers of
//! 22 binary places and rounded to a byte.

use std::f64::consts::PI;

use candle_core::{bail, Result};

use super::Picture;

/// Binary places of a factor.
const PLACES: u32 = 22;

/// How far pixels count, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Bilinear,
    Bicubic,
    Lanczos,
}

impl Filter {
    /// That of a number which stands for it in Pillow and in files.
    pub(super) fn of_number(number: u64) -> Result<Self> {
        match number {
            1 => Ok(Self::Lanczos),
            2 => Ok(Self::Bilinear),
            3 => Ok(Self::Bicubic),
            other => bail!(
                "resample: {other} is not supported; supported: 1 (Lanczos), 2 (bilinear) and 3 (bicubic)"
            ),
        }
    }

    /// Pixels at this distance or further do not count.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.,
            Self::Bicubic => 2.,
            Self::Lanczos => 3.,
        }
    }

    /// The weight of a pixel at this distance.
    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| match x == 0. {
            true => 1.,
            false => (PI * x).sin() / (PI * x),
        };
        let distance = x.abs();
        match self {
            Self::Bilinear if distance < 1. => 1. - distance,
            // Keys' cubic with a = -1/2.
            Self::Bicubic if distance < 1. => (1.5 * distance - 2.5) * distance * distance + 1.,
            Self::Bicubic if distance < 2. => {
                ((distance - 5.) * distance + 8.) * distance * -0.5 + 2.
            }
            Self::Lanczos if (-3. ..3.).contains(&x) => sinc(x) * sinc(x / 3.),
            _ => 0.,
        }
    }

    /// For each of `to` pixels, the first of `from` that count, and their factors.
    fn taps(self, from: usize, to: usize) -> Vec<(usize, Vec<i32>)> {
        let scale = from as f64 / to as f64;
        // An image that shrinks is blurred as much.
        let wide = scale.max(1.);
        let support = self.support() * wide;
        let tap = |i: usize| {
            let center = (i as f64 + 0.5) * scale;
            let first = ((center - support + 0.5) as i64).max(0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let weights = (first..end).map(|at| self.weight((at as f64 - center + 0.5) / wide));
            let weights: Vec<f64> = weights.collect();
            let sum: f64 = weights.iter().sum();
            let factor = |weight: f64| {
                let part = if sum == 0. { weight } else { weight / sum };
                let scaled = part * f64::from(1 << PLACES);
                (scaled + if part < 0. { -0.5 } else { 0.5 }) as i32
            };
            (first, weights.into_iter().map(factor).collect())
        };
        (0..to).map(tap).collect()
    }
}

/// A sum of bytes times factors as a byte.
fn byte(sum: i64) -> u8 {
    ((sum + (1 << (PLACES - 1))) >> PLACES).clamp(0, 255) as u8
}

impl Picture {
    /// The image with `width` by `height` pixels, at least 1 each, by a filter that is known by Pillow's number: 1 for Lanczos, 2 for
    /// bilinear, 3 for bicubic.
    ///
    /// # Errors
    /// Another number; a side of 0.
    pub fn resized_by(&self, filter: u64, width: usize, height: usize) -> Result<Self> {
        if width == 0 || height == 0 {
            bail!("an image of {width} x {height} pixels; each side must be at least 1")
        }
        Ok(self.resized(width, height, Filter::of_number(filter)?))
    }

    /// The image with `width` by `height` pixels, at least 1 each.
    pub(super) fn resized(&self, width: usize, height: usize, filter: Filter) -> Self {
        let mut picture = self.clone();
        if width != picture.width {
            picture = picture.of_width(width, &filter.taps(self.width, width));
        }
        if height != picture.height {
            picture = picture.of_height(height, &filter.taps(self.height, height));
        }
        picture
    }

    fn of_width(&self, width: usize, taps: &[(usize, Vec<i32>)]) -> Self {
        let mut rgb = Vec::with_capacity(3 * width * self.height);
        for row in self.rgb.chunks_exact(3 * self.width) {
            for (first, factors) in taps {
                let mut sums = [0i64; 3];
                for (pixel, factor) in row[3 * first..].chunks_exact(3).zip(factors) {
                    for (sum, value) in sums.iter_mut().zip(pixel) {
                        *sum += i64::from(*value) * i64::from(*factor);
                    }
                }
                rgb.extend(sums.map(byte));
            }
        }
        Self {
            width,
            height: self.height,
            rgb,
        }
    }

    fn of_height(&self, height: usize, taps: &[(usize, Vec<i32>)]) -> Self {
        let line = 3 * self.width;
        let mut rgb = Vec::with_capacity(line * height);
        let mut sums = vec![0i64; line];
        for (first, factors) in taps {
            sums.fill(0);
            for (row, factor) in self.rgb[line * first..].chunks_exact(line).zip(factors) {
                for (sum, value) in sums.iter_mut().zip(row) {
                    *sum += i64::from(*value) * i64::from(*factor);
                }
            }
            rgb.extend(sums.iter().map(|sum| byte(*sum)));
        }
        Self {
            width: self.width,
            height,
            rgb,
        }
    }

    /// The part of `width` by `height` pixels whose first one is at `(x, y)`; it must lie in the image.
    pub(super) fn cropped(&self, [x, y]: [usize; 2], width: usize, height: usize) -> Self {
        let line = 3 * self.width;
        let rows = self.rgb.chunks_exact(line).skip(y).take(height);
        let rgb = rows.flat_map(|row| &row[3 * x..3 * (x + width)]);
        Self {
            width,
            height,
            rgb: rgb.copied().collect(),
        }
    }
}
