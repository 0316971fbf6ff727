//! What the examples of images share: reading and writing files of images.
#![allow(dead_code)]

use std::path::Path;

use candle_core::{DType, Device, Result, Tensor};
use image::{DynamicImage, ImageDecoder, ImageReader, ImageResult, Limits, RgbImage};

/// The image of a PNG or JPEG, upright if the file says how the camera was held.
///
/// # Errors
/// There is no file, or it has no image that can be read, or one that takes more than 512 MiB.
pub fn read(path: &Path) -> Result<RgbImage> {
    let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
    let reader = reader.map_err(|err| crate::common::of_file(path, err))?;
    upright(reader).map_err(|err| {
        let text = format!("it is not a PNG or JPEG that can be read: {err}");
        crate::common::of_file(path, text)
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

/// Writes a PNG.
pub fn write(picture: &RgbImage, path: &Path) -> Result<()> {
    let written = picture.save_with_format(path, image::ImageFormat::Png);
    written.map_err(|err| crate::common::of_file(path, err))
}
