import os

import httpx
from fastmcp.tools import tool


@tool
async def get_weather(city: str, units: str = "metric") -> dict:
    """Get the current weather of a city.

    Args:
        city: Name of the city, such as "Berlin" or "Portland,US".
        units: "metric" (°C), "imperial" (°F) or "standard" (K).

    Returns:
        City, temperature, description and humidity in percent.
    """
    base_url = os.environ.get("WEATHER_BASE_URL", "https://api.openweathermap.org")
    api_key = os.environ["WEATHER_API_KEY"]
    async with httpx.AsyncClient(base_url=base_url, timeout=10) as client:
        response = await client.get("/data/2.5/weather", params={"q": city, "units": units, "appid": api_key})
    if response.is_error:
        # Not raise_for_status(): its message holds the address, and that holds the key.
        raise RuntimeError(f"the weather service answered {response.status_code} {response.reason_phrase}")
    data = response.json()
    return {
        "city": data["name"],
        "temperature": data["main"]["temp"],
        "description": data["weather"][0]["description"],
        "humidity": data["main"]["humidity"],
    }
