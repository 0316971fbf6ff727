// The pixels of a picture that a model sees.

/**
 * Red, green, blue and alpha of the part `view` of a picture, in its size. The picture is halved until less than a halving is left: what
 * browsers draw smaller at once may skip pixels.
 */
export function pixelsOf(picture, { x, y, width, height, columns, rows }) {
    let from = picture;
    const draw = (w, h) => {
        const context = new OffscreenCanvas(w, h).getContext("2d", { willReadFrequently: true });
        // What can be seen through is white, as on paper.
        context.fillStyle = "white";
        context.fillRect(0, 0, w, h);
        context.imageSmoothingQuality = "high";
        context.drawImage(from, x, y, width, height, 0, 0, w, h);
        [from, x, y, width, height] = [context.canvas, 0, 0, w, h];
        return context;
    };
    while (width > 2 * columns || height > 2 * rows) {
        draw(Math.max(columns, Math.ceil(width / 2)), Math.max(rows, Math.ceil(height / 2)));
    }
    return draw(columns, rows).getImageData(0, 0, columns, rows).data;
}
