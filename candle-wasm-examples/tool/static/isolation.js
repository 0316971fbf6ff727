// Where a host sends no headers of cross-origin isolation, a service worker adds them: the page is loaded once more, through it.
{
    const LOADED = "candle-isolation";
    const worker = new URL("isolation-worker.js", document.currentScript.src);
    const again = () => {
        // A browser in which it does not help is left alone.
        if (sessionStorage.getItem(LOADED)) return;
        sessionStorage.setItem(LOADED, "1");
        location.reload();
    };
    if (crossOriginIsolated) {
        sessionStorage.removeItem(LOADED);
    } else if (isSecureContext && navigator.serviceWorker) {
        navigator.serviceWorker.addEventListener("controllerchange", again);
        navigator.serviceWorker.register(worker)
            .then(() => navigator.serviceWorker.controller && again())
            .catch(error => console.warn(`The page is not cross-origin isolated: ${error.message}`));
    }
}
