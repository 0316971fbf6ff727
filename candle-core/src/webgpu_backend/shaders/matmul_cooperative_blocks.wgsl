// rhs of the cooperative kernel in blocks. Scale and offset are few, so the values that eight elements share are computed once for them: an
// element takes one instruction.

fn rhs_eight(load: RhsLoad, i: u32) -> Eight {
  let v = rhs_values(rhs_word_of(load, i));
  let scale = vec4<f32>(v.scale * p.factor);
  let offset = vec4<f32>(fma(v.scale, -BIAS, v.offset) * p.factor);
  return Eight(vec4<Half>(fma(v.low, scale, offset)), vec4<Half>(fma(v.high, scale, offset)));
}
