//! Boxes around objects, how far they overlap, and the choice of one box for each object.

use std::cmp::Ordering;

/// A box around an object, by two of its corners in pixels.
#[derive(Debug, Clone)]
pub struct Bbox<D> {
    /// Left edge.
    pub xmin: f32,
    /// Top edge.
    pub ymin: f32,
    /// Right edge; its pixels belong to the box.
    pub xmax: f32,
    /// Bottom edge; its pixels belong to the box.
    pub ymax: f32,
    /// The confidence of the detector, at most 1.
    pub confidence: f32,
    /// Further data of the object, for instance its [`KeyPoint`]s.
    pub data: D,
}

impl<D> Bbox<D> {
    fn area(&self) -> f32 {
        pixels(self.xmin, self.xmax) * pixels(self.ymin, self.ymax)
    }
}

/// A point of an object, such as a joint of a body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyPoint {
    /// From the left, in pixels.
    pub x: f32,
    /// From the top, in pixels.
    pub y: f32,
    /// How sure the detector is that the point is visible.
    pub mask: f32,
}

/// The number of pixels from one to another, both included.
fn pixels(first: f32, last: f32) -> f32 {
    last - first + 1.
}

/// The area that two boxes share, divided by the area that they cover together: 1 for equal boxes, 0 for boxes apart. Corners are pixels
/// that belong to the box: one from (0, 0) to (9, 9) has an area of 100.
///
/// ```
/// use candle_transformers::object_detection::{iou, Bbox};
/// let at = |xmin| Bbox { xmin, ymin: 0., xmax: xmin + 9., ymax: 9., confidence: 1., data: () };
/// assert_eq!(iou(&at(0.), &at(0.)), 1.);
/// assert_eq!(iou(&at(0.), &at(5.)), 50. / 150.);
/// assert_eq!(iou(&at(0.), &at(20.)), 0.);
/// ```
pub fn iou<D>(b1: &Bbox<D>, b2: &Bbox<D>) -> f32 {
    let width = pixels(b1.xmin.max(b2.xmin), b1.xmax.min(b2.xmax)).max(0.);
    let height = pixels(b1.ymin.max(b2.ymin), b1.ymax.min(b2.ymax)).max(0.);
    let shared = width * height;
    shared / (b1.area() + b2.area() - shared)
}

/// Most confident first, boxes of equal confidence in the order in which they came. A confidence of NaN is the least.
fn sort_by_confidence<D>(boxes: &mut [Bbox<D>]) {
    boxes.sort_by(|b1, b2| {
        let (c1, c2) = (b1.confidence, b2.confidence);
        let nan_last = c1.is_nan().cmp(&c2.is_nan());
        nan_last.then(c2.partial_cmp(&c1).unwrap_or(Ordering::Equal))
    });
}

/// Drops each box whose [`iou`] with a more confident one that stays is above `threshold`. Each vector of `bboxes` holds the boxes of one
/// class, and is sorted by confidence, the highest first.
pub fn non_maximum_suppression<D>(bboxes: &mut [Vec<Bbox<D>>], threshold: f32) {
    for boxes in bboxes {
        sort_by_confidence(boxes);
        let mut kept: Vec<Bbox<D>> = Vec::with_capacity(boxes.len());
        for candidate in boxes.drain(..) {
            if !kept.iter().any(|best| iou(best, &candidate) > threshold) {
                kept.push(candidate);
            }
        }
        *boxes = kept;
    }
}

/// Lowers the confidence of boxes that overlap instead of dropping them, after [Soft-NMS](https://arxiv.org/abs/1704.04503). Each vector
/// of `bboxes` holds the boxes of one class, and is sorted by confidence as it is at first, the highest first.
///
/// A box whose [`iou`] with a more confident one is above `iou_threshold` (0.5 where it is `None`) keeps the share exp(-iou² / `sigma`) of
/// its confidence (`sigma` 0.5 where it is `None`). Where there are several such boxes, the least confident of them counts alone, as in
/// Candle. A confidence that ends below `confidence_threshold` (0.1 where it is `None`) is set to 0; no box is dropped.
pub fn soft_non_maximum_suppression<D>(
    bboxes: &mut [Vec<Bbox<D>>],
    iou_threshold: Option<f32>,
    confidence_threshold: Option<f32>,
    sigma: Option<f32>,
) {
    let iou_threshold = iou_threshold.unwrap_or(0.5);
    let confidence_threshold = confidence_threshold.unwrap_or(0.1);
    let sigma = sigma.unwrap_or(0.5);
    for boxes in bboxes {
        sort_by_confidence(boxes);
        // Only the boxes before a box count for it: from the last on, none is needed again.
        for index in (0..boxes.len()).rev() {
            let (before, from) = boxes.split_at_mut(index);
            let Some(current) = from.first_mut() else {
                continue;
            };
            let mut overlaps = before.iter().rev().map(|better| iou(better, current));
            if let Some(iou) = overlaps.find(|&iou| iou > iou_threshold) {
                current.confidence *= (-iou * iou / sigma).exp();
            }
            if current.confidence < confidence_threshold {
                current.confidence = 0.;
            }
        }
    }
}
