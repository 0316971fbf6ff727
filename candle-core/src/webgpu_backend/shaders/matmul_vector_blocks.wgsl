// Operands of the vector kernel with blocks: codes are multiplied directly; scale, offset and bias of the codes are applied to eight
// products at once. The sum of lhs that this needs is computed once for all columns.

alias Sum = f32;

struct LhsValues {
  low: vec4<f32>,
  high: vec4<f32>,
  sum: f32,
  bias: f32,
}

fn sum_of(s: Sum) -> f32 {
  return s;
}

fn with_sums(low: vec4<f32>, high: vec4<f32>) -> LhsValues {
  let four = low + high;
  let sum = (four.x + four.y) + (four.z + four.w);
  return LhsValues(low, high, sum, sum * LHS_BIAS);
}

fn lhs_values(w: LhsWord) -> LhsValues {
  let v = lhs_eight(w);
  return with_sums(v[0], v[1]);
}

fn fma_values(a: LhsValues, b: RhsValues, sum: Sum) -> Sum {
  let product = dot(a.low, b.low) + dot(a.high, b.high) - a.bias;
  return fma(b.scale, product, fma(b.offset, a.sum, sum));
}

fn normed_values(lhs: LhsWord, alpha: LhsWord) -> LhsValues {
  let v = lhs_eight(lhs);
  let a = lhs_eight(alpha);
  return with_sums(v[0] * a[0], v[1] * a[1]);
}

fn fma_squares(lhs: LhsWord, sum: Sum) -> Sum {
  let v = lhs_eight(lhs);
  return sum + (dot(v[0], v[0]) + dot(v[1], v[1]));
}
