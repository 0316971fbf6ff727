//! What the examples of images share: where they run, and what they read.

use std::fmt::Display;
use std::path::Path;

use candle_core::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use clap::ValueEnum;
use image::{DynamicImage, ImageDecoder, ImageReader, ImageResult, Limits, RgbImage};

/// The device of an example.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum On {
    Cpu,
    Webgpu,
    Cuda,
}

/// The requested device, or the best one of this build.
pub fn device(on: Option<On>) -> Result<Device> {
    match on {
        Some(On::Cpu) => Ok(Device::Cpu),
        Some(On::Webgpu) => Device::new_webgpu(0),
        Some(On::Cuda) => Device::new_cuda(0),
        None => Device::best_available(),
    }
}

pub fn of_file(path: &Path, err: impl Display) -> Error {
    Error::Msg(format!("{}: {err}", path.display()))
}

/// The image of a PNG or JPEG, upright if the file says how the camera was held.
///
/// # Errors
/// There is no file, or it has no image that can be read, or one that takes more than 512 MiB.
pub fn read(path: &Path) -> Result<RgbImage> {
    let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
    let reader = reader.map_err(|err| of_file(path, err))?;
    upright(reader).map_err(|err| {
        let text = format!("it is not a PNG or JPEG that can be read: {err}");
        of_file(path, text)
    })
}

fn upright<R: std::io::BufRead + std::io::Seek>(reader: ImageReader<R>) -> ImageResult<RgbImage> {
    let mut decoder = reader.into_decoder()?;
    // As `ImageReader::decode` does, which says nothing of the orientation.
    Limits::default().reserve(decoder.total_bytes())?;
    let orientation = decoder.orientation()?;
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    Ok(picture.into_rgb8())
}

/// (1, 3, height, width) with numbers from 0 to 1.
pub fn pixels(picture: RgbImage, device: &Device) -> Result<Tensor> {
    let (w, h) = picture.dimensions();
    let pixels = Tensor::from_vec(
        picture.into_raw(),
        (1, h as usize, w as usize, 3),
        &Device::Cpu,
    )?;
    let pixels = pixels.permute((0, 3, 1, 2))?.to_dtype(DType::F32)?;
    (pixels / 255.)?.to_device(device)
}

/// The tensors of safetensors files, as f32.
pub fn weights<P: AsRef<Path>>(paths: &[P], device: &Device) -> Result<VarBuilder<'static>> {
    // SAFETY: nothing changes the files meanwhile.
    unsafe { VarBuilder::from_mmaped_safetensors(paths, DType::F32, device) }
}

/// The name of a value on the command line.
pub fn name(value: impl ValueEnum) -> String {
    let name = value.to_possible_value();
    name.map_or(String::new(), |name| name.get_name().to_string())
}

/// Writes a PNG.
pub fn write(picture: &RgbImage, path: &Path) -> Result<()> {
    let written = picture.save_with_format(path, image::ImageFormat::Png);
    written.map_err(|err| of_file(path, err))
}
