//! The `preprocessor_config.json`: from pixels to numbers.

use candle_core::{bail, Device, Result, Tensor};
use serde_json::{Map, Value};

use super::resize::Filter;
use super::{Picture, MAX_SIDE};
use crate::auto::config::parse;

/// The mean and deviation of the images that CLIP saw.
pub(super) const CLIP: [[f64; 3]; 2] = [
    [0.48145466, 0.4578275, 0.40821073],
    [0.26862954, 0.26130258, 0.27577711],
];

/// Those of numbers from -1 to 1.
pub(super) const EVEN: [[f64; 3]; 2] = [[0.5; 3]; 2];

/// The settings that families have in common, and the others as they are.
#[derive(Clone, Debug)]
pub(super) struct Processor {
    fields: Map<String, Value>,
    rescale: f64,
    mean: [f64; 3],
    std: [f64; 3],
}

impl Processor {
    /// Without `image_mean` and `image_std` in the text, these are `defaults`.
    pub(super) fn read(text: &str, defaults: [[f64; 3]; 2]) -> Result<Self> {
        let mut fields: Map<String, Value> = parse(text)?;
        if let Some(Value::Object(inner)) = fields.get("image_processor") {
            fields = inner.clone();
        }
        fields.retain(|_, value| !value.is_null());
        let mut read = Self {
            fields,
            rescale: 1.,
            mean: [0.; 3],
            std: [1.; 3],
        };
        if !read.flag("do_resize", true) {
            bail!("do_resize: false is not supported; the encoder takes images of one size")
        }
        if read.flag("do_rescale", true) {
            read.rescale = match read.fields.get("rescale_factor") {
                None => 1. / 255.,
                Some(value) => value.as_f64().unwrap_or(f64::NAN),
            };
        }
        if read.flag("do_normalize", true) {
            let [mean, std] = defaults;
            read.mean = read.three("image_mean", mean)?;
            read.std = read.three("image_std", std)?;
        }
        let numbers = [read.mean, read.std];
        let finite = numbers.iter().flatten().all(|it| it.is_finite());
        if !finite || !read.rescale.is_finite() || read.std.contains(&0.) {
            bail!("rescale_factor, image_mean or image_std: expected finite numbers, and no 0 in image_std")
        }
        Ok(read)
    }

    /// A switch.
    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        let value = self.fields.get(name).and_then(Value::as_bool);
        value.unwrap_or(default)
    }

    fn three(&self, name: &str, default: [f64; 3]) -> Result<[f64; 3]> {
        let Some(value) = self.fields.get(name) else {
            return Ok(default);
        };
        let numbers = value.as_array().map(Vec::as_slice);
        let numbers = numbers.and_then(|all| <&[Value; 3]>::try_from(all).ok());
        match numbers.map(|all| all.each_ref().map(Value::as_f64)) {
            Some([Some(r), Some(g), Some(b)]) => Ok([r, g, b]),
            _ => bail!("{name}: {value}; expected three numbers"),
        }
    }

    /// A side of `name`, such as `height` of `size`, in pixels.
    pub(super) fn side(&self, name: &str, side: &str) -> Result<Option<usize>> {
        let Some(value) = self.fields.get(name).and_then(|it| it.get(side)) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(pixels) if (1..=MAX_SIDE as u64).contains(&pixels) => Ok(Some(pixels as usize)),
            _ => bail!("{name}.{side}: {value}; expected a whole number from 1 to {MAX_SIDE}"),
        }
    }

    /// A whole number, from 1 on: the field `name`, or a field of that.
    pub(super) fn count(&self, name: &str, inner: Option<&str>) -> Result<Option<usize>> {
        let found = self.fields.get(name);
        let found = match inner {
            Some(inner) => found.and_then(|found| found.get(inner)),
            None => found,
        };
        let Some(value) = found.filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        match value.as_u64().and_then(|it| usize::try_from(it).ok()) {
            Some(count @ 1..) => Ok(Some(count)),
            _ => {
                let inner = inner.map(|inner| format!(".{inner}")).unwrap_or_default();
                bail!("{name}{inner}: {value}; expected a whole number of at least 1")
            }
        }
    }

    /// How images are scaled.
    pub(super) fn filter(&self, default: Filter) -> Result<Filter> {
        match self.fields.get("resample").map(|it| (it, it.as_u64())) {
            None => Ok(default),
            Some((_, Some(number))) => Filter::of_number(number),
            Some((other, None)) => bail!("resample: {other}; expected a number from 1 to 3"),
        }
    }

    /// The numbers of images of one size, on the CPU in f32: `(images, 3, height, width)`.
    pub(super) fn numbers(&self, pictures: &[Picture]) -> Result<Tensor> {
        let Some(first) = pictures.first() else {
            bail!("no image")
        };
        // A byte has 256 values.
        let tables: [Vec<f32>; 3] = std::array::from_fn(|channel| {
            let (mean, std) = (self.mean[channel] as f32, self.std[channel] as f32);
            let number = |byte: u32| ((f64::from(byte) * self.rescale) as f32 - mean) / std;
            (0..256).map(number).collect()
        });
        let (width, height) = (first.width, first.height);
        let mut numbers = Vec::with_capacity(3 * width * height * pictures.len());
        for picture in pictures {
            for (channel, table) in tables.iter().enumerate() {
                let bytes = picture.rgb.iter().skip(channel).step_by(3);
                numbers.extend(bytes.map(|byte| table[usize::from(*byte)]));
            }
        }
        Tensor::from_vec(numbers, (pictures.len(), 3, height, width), &Device::Cpu)
    }
}
