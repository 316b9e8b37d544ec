// esbuild gathers the styles in app.css.
declare module "*.css";
