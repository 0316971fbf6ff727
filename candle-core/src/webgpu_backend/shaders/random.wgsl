// dst[i] = random number p.first + i of the sequence of p.seed, by philox.wgsl: each number depends only on its index in the sequence, so
// grids and adapters do not matter. unit() and angle_cosine() come from random_*.wgsl.

fn number(bits: vec4<u32>) -> dst_t {
  if (UNIFORM) {
    // From first() up to second(), which is the greatest number included.
    let x = first() + unit(bits.xz) * width();
    return select(x, second(), x > second());
  }
  // Box-Muller with mean first() and standard deviation second().
  return first() + second() * radius(bits.xz) * angle_cosine(bits.yw);
}

fn element_at(i: u32) -> dst_t {
  let low = p.first_low + i;
  let place = vec2<u32>(low, p.first_high + u32(low < i));
  return number(philox(place, vec2<u32>(p.seed_low, p.seed_high)));
}
